"""Where a text comes from: an index of the training text, its spans, documents and steps."""
