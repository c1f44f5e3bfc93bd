"""Observation of running crawls from outside, for the terminal and the dashboard."""
