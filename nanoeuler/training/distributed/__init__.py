"""Several processes, the ranks, that share every step of a training stage."""
