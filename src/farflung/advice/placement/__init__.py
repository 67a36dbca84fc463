"""Decides which device trains what: groups, pipelines, layers, and what changes when some are lost (requirement
P4).
"""
