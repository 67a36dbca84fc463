"""Make the loss go down over thin wires: rounds, local steps, optimizers, data order."""
