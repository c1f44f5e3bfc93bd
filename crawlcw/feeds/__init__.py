"""Feeds: the recorded items on their way out, in the form and to the place that a user names."""
