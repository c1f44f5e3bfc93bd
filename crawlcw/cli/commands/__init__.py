"""The commands of `crawlcw`; each module defines one command, or several related commands."""
