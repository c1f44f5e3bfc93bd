"""What a crawl shows to those who look at it from outside, on a terminal or in a browser."""
