"""Downloaded files of requests with `save_to`, on disk or in a remote store."""
