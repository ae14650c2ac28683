"""Who runs, and how a call reaches them."""
