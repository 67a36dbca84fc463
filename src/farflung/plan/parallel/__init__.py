"""What parallel training moves, waits for and loses: bytes, synchronisations and seconds, each with its formula."""
