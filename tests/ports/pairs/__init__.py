"""Spiders of Scrapy and their ports, in pairs; each is run by its own command."""
