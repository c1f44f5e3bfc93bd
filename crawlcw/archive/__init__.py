"""The pages that a crawl keeps (`keep_bodies`): WARC files, written and read."""
