"""Telemetry for others: metrics, traces, alarms, and a webhook at the end of a crawl."""
