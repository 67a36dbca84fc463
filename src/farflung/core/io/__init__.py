"""The shells of `core`: the only files of the package that wait or touch the machine."""
