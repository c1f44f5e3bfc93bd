"""Write and read the archive of fetched pages (`keep_bodies`) in WARC files."""
