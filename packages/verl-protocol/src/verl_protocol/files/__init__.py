"""Batches on disk."""
