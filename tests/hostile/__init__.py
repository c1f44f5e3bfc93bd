"""Crawls of hostile servers."""
