"""The commands of `crawlcw`, each module with one command or several related commands."""
