"""Export of items."""
