"""The in-process group."""
