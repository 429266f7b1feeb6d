"""The mathematics: the transformer, its blocks, tensors, gradient checks, and files."""
