"""Telemetry for other programs: metrics, traces, alarms, and a webhook at the end of a crawl."""
