"""How much memory a module's step takes, found by going through it without numbers."""
