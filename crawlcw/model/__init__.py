"""Values and decisions, without I/O: tasks and hosts, and the changes of their states."""
