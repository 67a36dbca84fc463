"""Searches layouts of a job over hosts: pipelines, shards, replicas."""
