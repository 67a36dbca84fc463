"""What it takes: bytes, memory, time and price, before anything is spent."""
