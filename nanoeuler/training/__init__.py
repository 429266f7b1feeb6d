"""One loop for every stage: rows, steps, optimizers, checkpoints, and ranks that share a step."""
