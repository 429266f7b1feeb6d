"""Learn from the rewards of the model's own replies to problems whose answers can be checked.

A step samples a group of replies to each of its problems and follows the gradient of their expected
reward: REINFORCE with the mean of the other replies as the baseline, without the divisions of GRPO
that bias it (Shao et al. 2024; Liu et al. 2025). Theory: docs/rl.md.

    nanoeuler rl --config config/config.yaml --output results/demo/rl \\
        --problems data/problems/sums/manifest.json \\
        --tokenizer data/corpora/demo/tokenizer-512/tokenizer.json \\
        --parent results/demo/dpo/model
"""

import math
from typing import TYPE_CHECKING

from nanoeuler import log
from nanoeuler.config.settings import Rl
from nanoeuler.config.stages import RL
from nanoeuler.errors import UserError
from nanoeuler.model.transformer import Transformer
from nanoeuler.storage.files import sha256_file
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.job import Job
from nanoeuler.training.lanes import engine_beside_steps
from nanoeuler.training.rewards import Rewards
from nanoeuler.training.rollouts import Fit, PolicyGradient, RolloutStream, Sampler, read_problems
from nanoeuler.training.schedule import Amount
from nanoeuler.training.stages.inputs import Inputs, Start
from nanoeuler.training.streams import steps_in

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

MOST_NEW_TOKENS = 256
"""Tokens of a reply at most, where rl.max_new_tokens is null."""


def job(inputs: Inputs[Rl], backend: "Backend", group: Group = ALONE) -> Job:
    """Rewarding a parent. Raises `UserError` for input that does not fit."""
    settings, start = inputs.settings, Start(RL, inputs, backend, group)
    model, tokenizer, parent, seed = start.model, start.tokenizer, start.parent, start.seed
    assert parent is not None  # see `Stage.needs_parent`
    files, template = start.files, parent.template
    most = max_new_tokens(settings, model.context)
    longest = model.context - most + 1  # the last token of a reply is never read
    problems, fit = read_problems(files[0], tokenizer, template, longest, start.apart)
    describe_fit(fit, settings, model.context, most)
    held_out, _ = read_problems(files[1], tokenizer, template, longest)
    if not held_out:
        raise UserError(
            f"{files[1]}: none of the held-out problems leaves room for a reply of {most} tokens "
            "in the context; raise rl.context or lower rl.max_new_tokens"
        )
    rewards = Rewards(settings.reward, settings.reward_seconds, inputs.output)
    sampler = Sampler(
        *(tokenizer, rewards, most, group.share),
        only_ended=settings.only_ended,
        calculator=parent.calculator,
    )
    width = max(len(each.prompt) for each in problems) + most - 1 if problems else model.context
    row = settings.group * width
    amount = Amount.of(settings, len(problems) * row, row)
    settings = amount.put_into(settings)
    stream = RolloutStream(
        problems, sampler, settings, amount.batch_tokens, model.mtp_heads, seed, group.share
    )
    steps = settings.uses * steps_in(amount.epochs, stream)

    def prepare() -> None:
        if settings.kl > 0:
            first = parent.at_start(model, seed).copy()  # training moves the others
            engine = engine_beside_steps(settings.reproducible, model, backend)
            stream.reference = Transformer(model, engine.from_host(first), engine, base=start.base)

    log.line(
        "problems",
        f"{log.counted(len(problems), 'problem')} with {settings.group} replies each of up to "
        f"{most} tokens, {log.counted(amount.epochs, 'epoch')}, {log.counted(steps, 'step')} of "
        f"{log.counted(stream.problems_per_step, 'problem')}",
    )
    reward = [sha256_file(path) for path in rewards.files]
    return start.job(
        settings,
        start.hashes(calculator=parent.calculator, template=template, reward=reward),
        steps,
        stream=stream,
        prepare=prepare,
        validate=lambda transformer: sampler.measure(transformer, held_out),
        score=lambda values: 0.0 - values["reward"],
        template=template,
        calculator=parent.calculator,
        objective=PolicyGradient(),
        memory=stream,
        facts={
            "records": fit.records,
            "whole_share": fit.whole_share,
            "held_out_problems": len(held_out),
        },
    )


def max_new_tokens(settings: Rl, context: int) -> int:
    """Tokens of a reply at most. Raises `UserError` where no prompt fits beside them."""
    most = settings.max_new_tokens or min(MOST_NEW_TOKENS, context // 2)
    if most >= context:
        raise UserError(
            f"rl.max_new_tokens is {most}, and a problem with its reply has rl.context = {context} "
            "tokens; lower the one or raise the other"
        )
    return most


def check_fit(inputs: Inputs[Rl], template: str) -> Fit:
    """Count the problems for training that leave room for a reply. Raises `UserError` for too
    few."""
    tokenizer, context = Tokenizer.load(inputs.tokenizer), inputs.context
    most = max_new_tokens(inputs.settings, context)
    file = RecordFolder(inputs.data, "problems").file("train")
    _, fit = read_problems(file, tokenizer, template, context - most + 1, inputs.apart()[0])
    describe_fit(fit, inputs.settings, context, most)
    return fit


def describe_fit(fit: Fit, settings: Rl, context: int, most: int) -> None:
    """Say how many problems leave room for a reply; raise `UserError` when those are too few."""
    log.line(
        "fit",
        f"rl: {fit.whole_share:.1%} of {fit.records:,} problems leave room for a reply of {most} "
        f"tokens in {context}; the others are left out",
    )
    if fit.whole_share < settings.minimum_fit_share:
        raise UserError(
            f"only {fit.whole_share:.1%} of the problems leave room for a reply of {most} tokens "
            f"in rl.context = {context}; raise rl.context, lower rl.max_new_tokens, or accept it "
            f"by setting rl.minimum_fit_share to {math.floor(1000 * fit.whole_share) / 1000:g}"
        )
