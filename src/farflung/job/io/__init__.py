"""The shells of `job`: the only files of the package that wait or touch the machine."""
