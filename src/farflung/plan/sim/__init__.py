"""Networks played from a seed, in whole numbers: who is there, who is hired, what is done, paid and relayed."""
