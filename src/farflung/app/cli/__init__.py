"""Contains the command line: one file for each group of commands, imported when it is used."""
