"""The law: what every validator must compute alike. Integers only."""
