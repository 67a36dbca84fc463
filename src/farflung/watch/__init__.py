"""Shows a run: one fold of events that feeds text, JSON and screens."""
