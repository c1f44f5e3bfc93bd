"""What any worker on a ledger needs: leases, heartbeats, patience, and tasks that run alone."""
