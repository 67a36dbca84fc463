"""Contains the ledger's reader side: screens of `farflung ledger show`, proofs, statements, exports."""
