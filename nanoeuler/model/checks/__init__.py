"""Checks of gradients against finite differences, and of engines against the reference."""
