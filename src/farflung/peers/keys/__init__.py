"""Key files of accounts and nodes."""
