"""A whole network of processes on this computer, started, watched and ended."""
