"""Optimizers: what moves the parameters, and the tensors that this takes."""
