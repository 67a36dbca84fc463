"""The identity of a network: its invitation, its file at whoever joined it, and the card that its seats sign."""
