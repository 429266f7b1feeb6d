"""Writing with a model: sampling, the visible context, continuation of token ids, and chat."""
