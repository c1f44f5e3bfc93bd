"""Reading a spider's source by `ast`, without importing it: what `crawlcw check` finds in it."""
