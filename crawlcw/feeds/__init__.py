"""Export recorded items in several formats to several kinds of targets."""
