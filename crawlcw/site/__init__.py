"""A whole site by one command: which pages belong to it, and what each page becomes."""
