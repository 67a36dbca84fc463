"""Holds the sync methods, a file each: everything that another package has to know of one is asked of its row in
`registry`.
"""
