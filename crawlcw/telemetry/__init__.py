"""Send a crawl's metrics, traces, alarms and report to other programs, such as a webhook."""
