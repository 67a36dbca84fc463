"""Implements SDBFT, the consensus protocol of a committee (docs/protocol/sdbft.md).

Events come in, effects go out; there is no clock and no I/O.
"""
