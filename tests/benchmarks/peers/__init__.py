"""The same crawl by other frameworks, in an environment of theirs; nothing imports these."""
