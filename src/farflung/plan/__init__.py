"""The planner predicts bytes, memory, time and price of a run before anything is spent."""
