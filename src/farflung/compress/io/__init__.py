"""The shells of `compress`: the only files of the package that wait or touch the machine."""
