"""Ops that learners write themselves: what is asked of them, and what is wrong with an attempt."""
