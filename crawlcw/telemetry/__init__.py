"""Send metrics, traces and alarms of a crawl to other programs, and its report to a webhook."""
