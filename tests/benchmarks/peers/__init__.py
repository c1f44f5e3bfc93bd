"""The same crawl by other frameworks, in an environment of their own; no module imports these."""
