"""A supervisor and its workers: how they start, talk and end."""
