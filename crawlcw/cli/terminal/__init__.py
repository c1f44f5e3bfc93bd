"""Terminal output: the log, progress, tables."""
