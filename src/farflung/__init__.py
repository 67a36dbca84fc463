"""farflung: train real PyTorch models on strangers' computers, and pay only for work that was checked."""
