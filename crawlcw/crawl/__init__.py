"""One crawl: what is asked for next, how it is fetched, and what comes of it."""
