"""See it: one fold of events that feeds text, JSON and screens."""
