"""Checks of gradients against numerical derivatives, and of engines against the reference."""
