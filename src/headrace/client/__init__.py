"""What programs of ours use to speak with a broker: connections, leases, records as Arrow."""
