"""The ledger for readers: its HTTP interface, the screens of `farflung ledger show`, statements, metrics."""
