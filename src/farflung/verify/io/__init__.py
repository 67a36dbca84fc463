"""Contains the shells of `verify`: the only files of the package that wait or touch the machine."""
