"""SDBFT, how a committee agrees (docs/protocol/sdbft.md): events in, effects out, no clock and no I/O."""
