"""A supervisor and its worker processes."""
