"""The processes of a network and what they say to each other."""
