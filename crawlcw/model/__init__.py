"""Tasks, hosts, and decisions about their next states, without I/O."""
