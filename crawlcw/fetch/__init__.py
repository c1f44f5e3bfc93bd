"""The way to the servers: the protocol, the real one, and the one for tests."""
