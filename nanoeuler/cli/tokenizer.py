"""Subcommands of the tokenizer wing."""

import argparse


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
