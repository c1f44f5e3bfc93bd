"""Spiders as they are common with Scrapy, each run on a site of its own on this machine."""
