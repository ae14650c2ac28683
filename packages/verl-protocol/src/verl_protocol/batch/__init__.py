"""The batch: its state, rows, columns, padding and joining."""
