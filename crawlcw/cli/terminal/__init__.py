"""What a terminal shows: the log, the progress line, tables."""
