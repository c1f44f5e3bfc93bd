"""Render pages in a browser; this package needs the extra `browser`."""
