"""What any worker on a ledger needs: leases, heartbeats, patience, a guard against poison."""
