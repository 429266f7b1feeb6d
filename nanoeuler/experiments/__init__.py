"""Is a gain real? Trials with and without a change, by seeds, and a verdict by a paired test."""
