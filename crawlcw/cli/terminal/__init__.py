"""The output on a terminal: the log, the progress, and tables."""
