"""Write the log, the progress and tables to a terminal."""
