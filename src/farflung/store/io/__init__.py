"""Contains the I/O code of `store`: the only files of the package that wait or touch the machine."""
