"""What there is to try crawlcw on without a network: a shop, and its spider."""
