"""One object for many workers."""
