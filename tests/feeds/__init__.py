"""The items on their way out."""
