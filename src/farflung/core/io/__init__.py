"""Contains the I/O shells of `core`: the only files of the package that wait or touch the machine."""
