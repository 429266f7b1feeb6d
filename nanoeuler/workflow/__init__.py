"""Python of the Snakefile: a workflow's start and end, its lock, and its machine or cluster."""
