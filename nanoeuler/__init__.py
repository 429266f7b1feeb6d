"""nanoeuler: a language-model pipeline that owns every piece, from raw text to a chatting model."""

__version__ = "0.1.0"
