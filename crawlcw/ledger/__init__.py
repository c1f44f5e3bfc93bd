"""The durable, shared list of tasks: its protocol, and implementations on three databases."""
