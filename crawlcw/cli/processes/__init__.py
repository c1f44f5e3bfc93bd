"""A supervisor, its workers and their children: how they start, talk and end."""
