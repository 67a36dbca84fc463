"""Connects two public keys over a network: identity, TLS between keys, framed streams and byte counters."""
