"""Measures codecs on recorded and made vectors for `farflung bench`."""
