"""Telemetry for other systems: metrics, traces, and a webhook at the end of a crawl."""
