"""Ops that learners write themselves: what is asked of them, and what is wrong with an attempt; and
a page that trains a model in a browser."""

OPS = (
    *("merge", "embedding", "embedding_at", "linear", "bias", "rms_norm", "layer_norm"),
    *("attention", "rope", "swiglu", "gelu", "cross_entropy", "adamw", "muon", "accept_drafts"),
    *("loss_weights", "preference", "policy_gradient"),
)
"""Names of the ops of `trials`, which takes long to load, for a shell that completes them."""
