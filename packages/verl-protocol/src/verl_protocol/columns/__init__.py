"""One column: dense, jagged or of objects; nothing here knows a batch."""
