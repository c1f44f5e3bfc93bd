"""Ports of common Scrapy spiders, each run on a local site."""
