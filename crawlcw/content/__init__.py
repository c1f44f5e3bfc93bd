"""The main content of a page, and pages as Markdown."""
