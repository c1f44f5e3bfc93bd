"""The durable, shared list of tasks: the protocol, and its implementations on three databases."""
