"""The durable, shared list of tasks: the protocol and its two implementations."""
