"""The `crawlcw` command line."""
