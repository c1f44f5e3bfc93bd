"""Render pages in a browser; this package needs `pip install 'crawlcw[browser]'`."""
