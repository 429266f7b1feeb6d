"""Groups of replies that the model itself samples, as training rows.

    problems → replies → rewards → advantages → weights of the sampled tokens

The gradient of the expected reward of a reply y ~ π is E[A(y) ∇ log π(y)], where A is the reward
above a baseline that does not depend on y (Williams 1992): here the mean reward of the *other*
replies to the same problem (Kool et al. 2019; Ahmadian et al. 2024). So the loss is −Σ w · log π of
the sampled tokens, with weights w that are known before the backward pass. docs/rl.md derives them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.config.settings import Rl
from nanoeuler.config.stages import RL
from nanoeuler.errors import UserError
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.calls import Calculator
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.template import TEMPLATES
from nanoeuler.storage.files import sha256_text
from nanoeuler.storage.record_folder import check_texts, read_apart
from nanoeuler.system.arithmetic import exp
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.objectives import KnownWeights
from nanoeuler.training.rewards import Rewards
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.streams import RowOrder, StepRows

if TYPE_CHECKING:
    from collections.abc import Collection

    from nanoeuler.model.transformer import Transformer

ROWS_AT_ONCE = 64
"""Replies that are sampled together, on one rank: a fixed number, since it changes last bits."""


@dataclass(frozen=True)
class Problem:
    instruction: str
    answer: str
    prompt: list[int]  # `</s>` and the template's tokens


@dataclass
class Fit:
    """Counts of problems whose prompt leaves room for a reply, or does not."""

    records: int = 0
    prompt_too_long: int = 0

    @property
    def whole_share(self) -> float:
        return 1 - self.prompt_too_long / max(1, self.records)


def read_problems(
    path: Path,
    tokenizer: Tokenizer,
    template: str,
    longest_prompt: int,
    held_out: "Collection[str]" = (),
) -> tuple[list[Problem], Fit]:
    """Read the JSON lines at `path`, without problems of longer prompts.

    Left out are those whose prompts' keys are `held_out` of the other records, too. Raises
    `UserError` naming a line that is no problem.
    """
    fit, problems = Fit(), []
    for where, entry in read_apart(path, held_out):
        if "answer" not in entry:
            raise UserError(
                f"{path}: holds no problems with answers; "
                "give the manifest.json that `nanoeuler problems` writes"
            )
        check_texts(entry, ("instruction", "answer"), where)
        text = TEMPLATES[template](entry["instruction"], entry.get("input", ""))
        prompt = [tokenizer.end_id, *tokenizer.encode(text).tolist()]
        fit.records += 1
        if len(prompt) > longest_prompt:
            fit.prompt_too_long += 1
        else:
            problems.append(Problem(entry["instruction"], entry["answer"], prompt))
    return problems, fit


# ---- replies


@dataclass
class Replies:
    """Replies to some prompts, each of its tokens, `</s>` included."""

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    """Log-probability of each sampled token under the logits that it was sampled from."""
    ended: list[bool] = field(default_factory=list)
    """True: ended by `</s>`; False: cut off at the limit."""
    rewards: list[float] = field(default_factory=list)

    def add(self, other: "Replies") -> None:
        for name, values in vars(other).items():
            getattr(self, name).extend(values)


class Sampler:
    """Lets a model reply to problems, and rewards it. The ranks do it together."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        rewards: Rewards,
        max_tokens: int,
        share: Share,
        *,
        only_ended: bool = False,
        calculator: bool = False,
    ):
        """`only_ended`: a reply that is cut off at `max_tokens` earns nothing. `calculator`: the
        model calls it."""
        self.tokenizer, self.rewards, self.max_tokens = tokenizer, rewards, max_tokens
        self.share, self.only_ended = share, only_ended
        self.calculator = Calculator(tokenizer) if calculator else None

    def sampled(self, reply: Sequence[int]) -> list[bool]:
        """Which tokens of a reply were sampled: results of the calculator were not."""
        given = self.calculator.results(reply) if self.calculator else [False] * len(reply)
        return [not each for each in given]

    def replies(
        self, model: "Transformer", problems: Sequence[Problem], sampling: Sampling
    ) -> Replies:
        """A reply to each of `problems`.

        Every id may be sampled, so that the distribution is the one that is trained. A reply with
        an id that stands for no text earns nothing.
        """
        writer = Writer(model, self.tokenizer, calculator=self.calculator is not None)
        has_text_V = writer.allowed_V
        learned = sampling.temperature > 0
        if learned:
            writer.allowed_V = np.ones_like(has_text_V)
        spacing = model.config.context + 1

        def part(number: int) -> Replies:
            first = number * ROWS_AT_ONCE
            chosen = problems[first : first + ROWS_AT_ONCE]
            positions = spacing * np.arange(first, first + len(chosen))
            prompts = [problem.prompt for problem in chosen]
            decoding = writer.decoding(
                prompts, sampling, self.max_tokens, positions, scored=learned
            )
            while decoding.step():
                pass
            found = Replies()
            for problem, written in zip(chosen, decoding.continuations, strict=True):
                end = [self.tokenizer.end_id] if written.ended else []
                tokens = written.ids + end
                found.tokens.append(tokens)
                found.logprobs.append(list(compress(written.logprobs, self.sampled(tokens))))
                found.ended.append(written.ended)
                reward = 0.0
                counts = written.ended or not self.only_ended
                if counts and has_text_V[written.ids].all():
                    text = self.tokenizer.decode_reply(written.ids)
                    reward = self.rewards.of(problem.instruction, text, problem.answer)
                found.rewards.append(reward)
            return found

        together = Replies()
        for found in self.share(-(-len(problems) // ROWS_AT_ONCE), part):
            together.add(found)
        return together

    def measure(self, model: "Transformer", problems: Sequence[Problem]) -> dict[str, float]:
        """Mean reward and length of greedy replies, and the share that ends by itself."""
        found = self.replies(model, problems, GREEDY)
        return {
            "reward": float(np.mean(found.rewards)),
            "reply_tokens": float(np.mean([len(tokens) for tokens in found.tokens])),
            "ended": float(np.mean(found.ended)),
        }


# ---- what a reply earned, and what its tokens weigh


def advantages(rewards_PG: np.ndarray, *, by_spread: bool = False) -> np.ndarray:
    """Each reward less the mean of the others of its group, (P, G).

    With its own reward in that mean, the expected gradient would be (G − 1) / G of the right one.
    `by_spread` divides by the group's standard deviation, where there is one.
    """
    G = rewards_PG.shape[1]
    above_PG = (rewards_PG - rewards_PG.mean(axis=1, keepdims=True)) * G / (G - 1)
    if by_spread:
        spread_P1 = rewards_PG.std(axis=1, keepdims=True)
        above_PG = above_PG / np.where(spread_P1 > 0, spread_P1, 1)
    return above_PG


def token_weights(
    learned_RT: np.ndarray, log_ratio_RT: np.ndarray, advantages_R: np.ndarray, clip: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights r A of the sampled tokens in Σ w ∇ log π, and which of them are clipped, (R, T) each.

    Tokens that are not `learned` weigh 0. The ratio r = π / π_sampled, whose logarithm is given, is
    1 where the model is the one that has sampled. With `clip` = ε, the weight is the derivative of
    min(r A, clip(r, 1 − ε, 1 + ε) A) with respect to log π: 0 where r has passed the bound in the
    direction of A, and r A elsewhere (Schulman et al. 2017, equation 7).
    """
    ratio_RT, A_R1 = exp(log_ratio_RT), advantages_R[:, None]
    clipped_RT = np.zeros(ratio_RT.shape, bool)
    if clip is not None:
        clipped_RT = ((A_R1 > 0) & (ratio_RT > 1 + clip)) | ((A_R1 < 0) & (ratio_RT < 1 - clip))
    return learned_RT * np.where(clipped_RT, 0.0, ratio_RT) * A_R1, clipped_RT


class PolicyGradient(KnownWeights):
    """The loss: rewards as weights of tokens, of both signs, so that their sum may be 0."""

    def first_head_weight(self, rows: StepRows) -> float:
        return 1.0


# ---- the stream


@dataclass
class Batch:
    """The replies that a number of steps learn from, and their log-probabilities (nats of a reply)
    under the model that the stage starts from, if that is asked for."""

    number: int
    replies: Replies
    reference: list[float] | None = None


@dataclass
class Framed:
    """Rows that are computed a few at a time."""

    rows: StepRows
    row_count: int

    def frame_rows(self, indices: np.ndarray) -> StepRows:
        return self.rows.chosen(indices)


class RolloutStream:
    """Rows with a reply each, as the model of the step samples them. Only head 0 has targets.

    Random numbers depend on seed, batch and row alone, so that a resumed run samples the same.
    """

    pure = False

    def __init__(
        self,
        problems: list[Problem],
        sampler: Sampler,
        settings: Rl,
        batch_tokens: int,
        heads: int,
        seed: int,
        share: Share = in_order,
    ):
        if not problems:
            raise UserError(
                "no problem leaves room for a reply in the context; raise rl.context, lower "
                "rl.max_new_tokens, or use other problems"
            )
        self.problems, self.sampler, self.settings = problems, sampler, settings
        self.heads, self.seed, self.share = heads, seed, share
        # the last token of a row is only a target
        self.length = max(len(each.prompt) for each in problems) + sampler.max_tokens - 1
        self.problems_per_step = min(
            max(1, batch_tokens // (settings.group * self.length)), len(problems)
        )
        self.rows_per_step = settings.group * self.problems_per_step
        self.row_count = settings.group * len(problems)
        self.order = RowOrder(seed, RL.name, len(problems), self.problems_per_step)
        self.reference: Transformer | None = None
        """The model that the stage starts from, where rl.kl is above 0; set by the stage."""
        self.batch: Batch | None = None
        self.low = 0
        """Batches in a row whose entropy was below the floor."""

    # ---- memory between steps

    @property
    def saved(self) -> dict[str, Any]:
        again = self.settings.uses > 1 and self.batch is not None
        return {"low": self.low, "batch": asdict(self.batch) if again and self.batch else None}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.low, batch = saved.get("low", 0), saved.get("batch")
        if batch is not None:
            batch = Batch(**batch | {"replies": Replies(**batch["replies"])})
        self.batch = batch

    # ---- rows

    def rows(self, step: int, model: "Transformer | None" = None) -> StepRows:
        assert model is not None
        number = step // self.settings.uses
        if self.batch is None or self.batch.number != number:
            self.batch = self.sample(number, model)
        return self.frame(self.batch, model)

    def problems_of(self, number: int) -> list[Problem]:
        """The problems of a batch, each as often as a group has replies."""
        chosen = [self.problems[index] for index in self.order.step(number)]
        return [problem for problem in chosen for _ in range(self.settings.group)]

    def sample(self, number: int, model: "Transformer") -> Batch:
        # top-p or a temperature would sample from another distribution than the one that is trained
        digest = sha256_text(f"{RL.name} {self.seed} {number}")
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=int(digest[:16], 16))
        problems = self.problems_of(number)
        batch = Batch(number, self.sampler.replies(model, problems, sampling))
        if self.reference is not None:
            found_RT = self.logprobs(self.reference, self.reply_rows(problems, batch.replies))
            batch.reference = found_RT.sum(axis=1, dtype=np.float64).tolist()
        self.heed_entropy(entropy_of(batch.replies))
        return batch

    def heed_entropy(self, entropy: float) -> None:
        """Raise `UserError` when the entropy has been too low for too long."""
        floor, most = self.settings.entropy_floor, self.settings.entropy_steps
        self.low = self.low + 1 if entropy < floor else 0
        if self.low >= most:
            raise UserError(
                f"rl: the replies have had less than rl.entropy_floor = {floor:g} nats per token "
                f"in {most} batches in a row, {entropy:.3g} in the last one: the model has "
                "collapsed to a few replies; lower rl.learning_rate or raise rl.kl to start anew, "
                "or lower rl.entropy_floor to go on"
            )

    def reply_rows(self, problems: Sequence[Problem], replies: Replies) -> StepRows:
        """A row for each reply, without weights."""
        R, T, end = len(problems), self.length, self.sampler.tokenizer.end_id
        ids, positions = np.full((R, T), end, np.int32), np.zeros((R, T), np.int32)
        starts = np.zeros((R, T), np.int32)
        targets = np.full((R, T, self.heads), -1, np.int32)
        for row, (problem, reply) in enumerate(zip(problems, replies.tokens, strict=True)):
            tokens = problem.prompt + reply
            size = len(tokens) - 1
            ids[row, :size] = tokens[:-1]
            positions[row, :size] = np.arange(size)
            starts[row, size:] = size
            learned = np.where(self.sampler.sampled(reply), reply, -1)
            targets[row, len(problem.prompt) - 1 : size, 0] = learned
        return StepRows(ids, positions, starts, targets, np.zeros(targets.shape, np.float32))

    def logprobs(self, model: "Transformer", rows: StepRows) -> np.ndarray:
        """Log-probabilities of the targets of `rows` under `model`, (R, T)."""
        framed = Framed(rows, len(rows.ids))
        return np.concatenate([part for _, part in all_logprobs(model, framed, share=self.share)])

    def frame(self, batch: Batch, model: "Transformer") -> StepRows:
        """The rows of a batch, with the weights that its tokens have under `model`."""
        settings, G, replies = self.settings, self.settings.group, batch.replies
        rows = self.reply_rows(self.problems_of(batch.number), replies)
        learned_RT = rows.targets[..., 0] >= 0
        sampled_RT = np.zeros(learned_RT.shape)
        sampled_RT[learned_RT] = [value for reply in replies.logprobs for value in reply]
        rewards_PG = np.reshape(replies.rewards, (-1, G))
        decided_P = (rewards_PG == rewards_PG[:, :1]).all(axis=1)
        notes = {
            "reward": float(rewards_PG.mean()),
            "entropy": entropy_of(replies),
            "reply_tokens": float(np.mean([len(tokens) for tokens in replies.tokens])),
            "ended": float(np.mean(replies.ended)),
            "all_right": float(np.mean(decided_P & (rewards_PG[:, 0] > 0))),
            "all_wrong": float(np.mean(decided_P & (rewards_PG[:, 0] <= 0))),
        }
        earned_PG = rewards_PG
        if batch.reference is not None:
            # −KL(π ‖ π₀) is the expectation of this difference, so it is a part of the reward
            gained_R = sampled_RT.sum(axis=1) - batch.reference
            notes["kl"] = float(gained_R.mean())
            earned_PG = rewards_PG - settings.kl * gained_R.reshape(-1, G)
        advantages_PG = advantages(earned_PG, by_spread=settings.divide_by_spread)
        counted_P = ~decided_P if settings.skip_decided else np.ones(len(decided_P), bool)
        share_R = np.repeat(counted_P / max(1, G * counted_P.sum()), G)
        if settings.divide_by_length:
            share_R = share_R / learned_RT.sum(axis=1)
        kept = np.flatnonzero(np.repeat(counted_P, G))
        if len(kept) == 0:
            kept = np.arange(1)  # of weight 0: a step needs a row
        rows, learned_RT = rows.chosen(kept), learned_RT[kept]
        advantages_R, share_R = advantages_PG.reshape(-1)[kept], share_R[kept]
        now_RT = self.logprobs(model, rows)
        log_ratio_RT = np.where(learned_RT, now_RT - sampled_RT[kept], 0.0)
        given = learned_RT, log_ratio_RT, advantages_R, settings.clip
        weights_RT, clipped_RT = token_weights(*given)
        rows.weights = np.zeros(rows.targets.shape, model.backend.dtype)
        rows.weights[..., 0] = weights_RT * share_R[:, None]
        notes["ratio"] = float(exp(np.abs(log_ratio_RT).max()))
        notes["clipped"] = float(clipped_RT.sum() / learned_RT.sum())
        rows.notes = notes
        return rows


def entropy_of(replies: Replies) -> float:
    """An estimate of the entropy per token in nats: the mean of −log-probability."""
    return -float(np.mean([value for reply in replies.logprobs for value in reply]))
