"""How to train a job on the machines that are offered: which hosts, in which layout, how long, at what price (P1)."""
