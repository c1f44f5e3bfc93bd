"""A web page that shows a crawl while it runs, and steers it: see `crawlcw dashboard`."""
