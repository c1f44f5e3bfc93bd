"""Offline demonstration: a bookshop and its spider."""
