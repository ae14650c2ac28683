"""The workers of a run: what happens in each process."""
