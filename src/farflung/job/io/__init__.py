"""Contains the I/O code of `job`: the only files of the package that wait or touch the machine."""
