"""A model in a browser: what is told of it, and the scripts and kernels that compute it there."""
