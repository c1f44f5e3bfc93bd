"""Pages that a browser renders: the layer behind the extra `browser`."""
