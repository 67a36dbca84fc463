"""Contains the rules of the law, one file for each part: money, nodes, jobs, settlement."""
