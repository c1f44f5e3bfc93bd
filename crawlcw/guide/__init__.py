"""The manual: a folder of Markdown pages, which the README links to and `crawlcw guide` shows."""
