"""Rendering of pages in a browser: the layer of the extra `browser`."""
