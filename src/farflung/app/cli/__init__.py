"""The command line: one file for each group of verbs, imported when it is used."""
