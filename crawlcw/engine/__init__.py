"""What any worker on a ledger needs: leases, heartbeats, retries, and tasks that run alone."""
