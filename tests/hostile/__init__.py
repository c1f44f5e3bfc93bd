"""Crawls of servers that mean no good."""
