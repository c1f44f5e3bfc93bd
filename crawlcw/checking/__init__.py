"""Check a spider's source with `ast`, without importing the file, for `crawlcw check`."""
