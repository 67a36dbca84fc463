"""Was the work done? Commitments, and the second reader of a finished run."""
