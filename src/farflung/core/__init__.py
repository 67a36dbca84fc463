"""Defines what all other packages share: ids, units, money, errors, codec, crypto, merkle, events, limits."""
