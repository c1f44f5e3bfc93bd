"""Files that requests with `save_to` leave on disk or in a remote store."""
