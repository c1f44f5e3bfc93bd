"""Archive of fetched pages (`keep_bodies`): WARC files, written and read."""
