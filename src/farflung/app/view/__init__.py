"""Renderings for people: the terminal's screen, replays, reports. They show events and decide nothing."""
