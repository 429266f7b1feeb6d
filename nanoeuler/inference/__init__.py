"""Writing with a model: sampling, the window of context in view, continuation of token ids, and chat."""
