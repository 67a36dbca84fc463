"""Defines arithmetic with the same bits on every machine.

It covers the last steps of a round, and graphs of whole training steps.
"""
