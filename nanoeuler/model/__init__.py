"""What is computed: the transformer, its blocks, its tensors, its gradient checks, its files."""
