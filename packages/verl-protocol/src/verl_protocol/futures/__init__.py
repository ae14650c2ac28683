"""Batches that are not there yet."""
