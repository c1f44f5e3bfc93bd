"""Run a Scrapy project as it is, on the ledger of crawlcw."""
