"""Reach a public key: identity, TLS between keys, framed streams, byte counters."""
