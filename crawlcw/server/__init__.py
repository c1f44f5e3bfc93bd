"""Tracked tasks over HTTP: for workers in any language, see `crawlcw serve`."""
