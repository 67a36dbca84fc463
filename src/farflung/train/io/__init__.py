"""Contains the shells of `train`: the only files of the package that wait or touch the machine."""
