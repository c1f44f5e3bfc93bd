"""The manual: Markdown pages, which `crawlcw guide` shows."""
