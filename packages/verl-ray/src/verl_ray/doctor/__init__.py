"""What this machine or cluster offers, and what will bite."""
