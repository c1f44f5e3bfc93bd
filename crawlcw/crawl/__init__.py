"""One crawl: choice of the next page, its fetch, and its outcome."""
