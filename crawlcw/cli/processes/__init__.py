"""Run a crawl by a supervisor and its worker processes."""
