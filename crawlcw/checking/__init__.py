"""Static checks of a spider's source, by `ast` and without importing it: `crawlcw check`."""
