"""The `io` modules of `net` do its input and output: no other file of the package waits or touches the machine."""
