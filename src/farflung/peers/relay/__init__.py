"""A relay process, and its link to the ledger."""
