"""Contains the I/O code of `host`: the only files of the package that wait or touch the machine."""
