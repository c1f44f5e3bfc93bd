"""The commands: what a person or a script at a terminal has of crawlcw."""
