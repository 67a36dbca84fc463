"""The shells of `store`: the only files of the package that wait or touch the machine."""
