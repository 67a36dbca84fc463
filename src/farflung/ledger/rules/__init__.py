"""One file for each part of the law: money, nodes, jobs, settlement."""
