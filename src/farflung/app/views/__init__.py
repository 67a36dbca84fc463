"""Draws runs and simulations: terminal screens, replay, reports and charts."""
