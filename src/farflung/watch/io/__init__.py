"""Contains the I/O code of `watch`: the only files of the package that wait or touch the machine."""
