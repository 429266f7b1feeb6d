"""Optimizers: they move the parameters, and keep tensors of their own for it."""
