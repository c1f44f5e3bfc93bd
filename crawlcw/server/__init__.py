"""Serve tracked tasks over HTTP to workers in any language, see `crawlcw serve`."""
