"""Trains a model over slow connections: rounds, local steps, optimizers, data order."""
