"""What runs on a rank."""
