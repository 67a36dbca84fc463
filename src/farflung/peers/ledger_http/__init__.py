"""Serves a ledger over HTTP: routes, forms, metrics."""
