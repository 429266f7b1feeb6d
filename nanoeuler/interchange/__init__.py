"""Models for other programs and from them: Hugging Face folders out and in, GGUF out."""
