"""Subcommands of the evaluation wing."""

import argparse


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this wing's subcommands."""
