"""One file for each role; it joins cores and shells from top to bottom."""
