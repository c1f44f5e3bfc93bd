"""Parts of any worker on a ledger: leases, heartbeats, retries, and quarantined tasks."""
