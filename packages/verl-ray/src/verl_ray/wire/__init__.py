"""What crosses the border between driver and worker."""
