"""Holds the I/O shells of `plan`: the only files of the package that read the disk."""
