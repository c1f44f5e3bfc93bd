"""Pages of the hostile server, by the sections of the catalogue."""

from tests.hostile.endpoints import content, healthy, http, links, transport

__all__ = ["content", "healthy", "http", "links", "transport"]
