"""The shells of `net`: the only files of the package that wait or touch the machine."""
