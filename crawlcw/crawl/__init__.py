"""One crawl: it chooses the next page, fetches the page and records the outcome."""
