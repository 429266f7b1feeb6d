"""The configurations that a model has while it grows in depth: see `refining.py`."""

from collections.abc import Sequence
from dataclasses import replace

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig


def refined(config: ModelConfig) -> ModelConfig:
    """The model with twice the layers of half the step. Raises `UserError` when it is too deep."""
    return replace(config, layers=2 * config.layers, step_size=config.step_size / 2)


def coarsened(config: ModelConfig, times: int) -> ModelConfig:
    """The model that becomes `config` when it is refined `times` times, if the layers allow it."""
    parts = 2**times
    return replace(config, layers=config.layers // parts, step_size=config.step_size * parts)


def check_growth(config: ModelConfig, grow_at: Sequence[int], steps: int) -> None:
    """Refuse growth that `steps` steps of training cannot bring to `config`."""
    given = f"pretrain.grow_at is {list(grow_at)}"
    if config.layers % 2 ** len(grow_at):
        raise UserError(
            f"{given}, but model.layers = {config.layers} is no multiple of {2 ** len(grow_at)}, "
            "by which the layers grow; change one of them"
        )
    if grow_at and max(grow_at) >= steps:
        raise UserError(
            f"{given}, but training has {steps} steps; every growth must come before the last one"
        )
