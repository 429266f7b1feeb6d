"""Subcommands of the sources wing."""

import argparse


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
