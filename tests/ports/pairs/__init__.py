"""Spiders of Scrapy and their ports, in pairs, each run by its own command."""
