"""Items from annotations: `crawlcw.items`."""
