"""Run one crawl, which chooses the next page, fetches the page and records the outcome."""
