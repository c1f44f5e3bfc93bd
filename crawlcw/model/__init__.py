"""Values and decisions, without I/O: what a task and a host are, and what becomes of them."""
