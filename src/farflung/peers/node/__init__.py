"""A lender's node: its agent, its leases to train or to audit, and what it stores."""
