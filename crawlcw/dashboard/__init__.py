"""The web page to watch, search and control crawls: see `crawlcw dashboard`."""
