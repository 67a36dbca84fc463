"""The sync methods as library calls, for people who bring their own cluster and their own training loop."""
