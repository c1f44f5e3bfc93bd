"""The parts that every worker has: leases, heartbeats, retries, and quarantined tasks."""
