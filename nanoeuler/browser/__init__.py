"""A model in a browser: what is told of it, and the scripts and kernels that compute it there."""

MOST_PARAMETERS = 5_250_000
"""Most parameters of a model in a report's page."""
