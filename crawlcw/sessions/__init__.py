"""Sessions of pages: their cookies, logins and proxies, shared by all processes of a crawl."""
