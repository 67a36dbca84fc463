"""A process of a network: its channel to a supervisor, interrupts, folders and bandwidth limits."""
