"""What systems outside of crawlcw are told of it: metrics, spans, and the end of a crawl."""
