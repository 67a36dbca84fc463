"""Contains the I/O shells of `ledger`: the only files of the package that wait or touch the machine."""
