"""The folder of an experiment: what was asked, and a trial for each arm and seed.

    results/experiments/NAME/experiment.json     what was asked, and the tokens of each arm
                             config.yaml         put over the base's configuration: the folders
                             ARM-seed7/          a trial: a run of the stage pretrain alone, and
                                                 tokens.json, what it was trained on

Weights and checkpoints of trials are not kept: their measurements are what is compared.
"""

import copy
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.config import RESOLVED, write_resolved
from nanoeuler.config.loading import Config, load_files, merge
from nanoeuler.config.rules import leaves, rule_identity
from nanoeuler.config.yaml_file import write_yaml
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.gather import read_metrics
from nanoeuler.evaluation.verdicts import QUESTION
from nanoeuler.experiments.changes import Change, title
from nanoeuler.experiments.verdicts import Verdict, judge
from nanoeuler.storage.files import (
    atomic_write,
    canonical_json,
    explain_os_errors,
    read_json,
    read_text,
    sha256_text,
    write_json,
)
from nanoeuler.storage.integrity import Origin, read_sealed, seal
from nanoeuler.storage.names import plain_name

OVERLAY = "config.yaml"
SPEED, TOKENS = "speed.json", "tokens.json"
BASE = "base"
LEAST_STEPS = 10
"""Steps of a trial at least. Fewer measure the initial weights."""
DATA_RULES = ("write_sample", "build_corpus", "learn_bpe", "tokenize")
"""Rules whose keys decide which tokens there are."""
SAME_SPEED = (
    *("learning_rate", "minimum_learning_rate_share", "warmup_steps", "schedule", "decay_share"),
    *("weight_decay", "beta1", "beta2", "epsilon", "clip_norm", "muon_momentum"),
    *("embedding_rate", "embedding_std", "init_from", "keep", "tokens"),
)
"""Keys of `pretrain` that don't change how long a step takes. Arms that differ in these alone share
one measured speed, whose error would otherwise count as a difference between them."""


@dataclass(frozen=True)
class Arm:
    """A way of training."""

    name: str  # in names of folders
    change: Change  # of the base's configuration; empty for the base itself
    config: Config  # but for seed, tokens and folders
    tokens: int | None  # of a trial; None until the speed is measured
    tokens_per_second: float | None = None  # where the budget is one of time or energy

    @property
    def title(self) -> str:
        return title(self.change) or BASE

    @property
    def values(self) -> dict[str, Any]:
        """The changed keys by their dotted names, with the values that the configuration has."""
        now = dict(leaves(self.config))
        return {name: now.get(name) for name, _ in leaves(self.change)}

    @property
    def identity(self) -> str:
        """What can change the result of a trial, but for its seed and tokens."""
        pretrain = self.config["pretrain"] | {"tokens": 0}
        return rule_identity(self.config | {"pretrain": pretrain, "seed": 0}, "pretrain")

    @property
    def steps(self) -> str:
        """What can change how long a step takes."""
        timed = {k: v for k, v in self.config["pretrain"].items() if k not in SAME_SPEED}
        return rule_identity(self.config | {"pretrain": timed, "seed": 0}, "pretrain")


@dataclass(frozen=True)
class Experiment:
    """What is asked, and where its trials are. The first arm is the base."""

    file: str  # the base's configuration
    folder: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    level: float
    unit: str  # of what a trial takes: tokens, minutes or joules
    amount: float
    question: Mapping[str, Any]

    # ---- trials

    def trial(self, arm: Arm, seed: int) -> Path:
        """The folder of a trial, which is that of a run."""
        return self.folder / f"{arm.name}-seed{seed}"

    def score(self, arm: Arm, seed: int) -> float | None:
        """Bits per byte of held-out text, the mean of its sources, of the model that a trial hands
        on; None where it isn't finished, and where the loss of that model is no number."""
        lines = list(read_metrics(self.trial(arm, seed) / "pretrain" / "metrics.jsonl"))
        if not any("finished" in line for line in lines):
            return None
        measured = [line["validation"].values() for line in lines if "validation" in line]
        scores = [sum(values) / len(values) for values in measured]
        best = arm.config["pretrain"]["keep"] == "best"
        kept = min(filter(math.isfinite, scores), default=math.nan) if best else scores[-1]
        return kept if math.isfinite(kept) else None

    def scores(self, arm: Arm) -> list[float]:
        """Those of the first seeds, up to the first trial that has none."""
        found = []
        for seed in self.seeds:
            score = self.score(arm, seed)
            if score is None:
                break
            found.append(score)
        return found

    def verdicts(self) -> list[tuple[Arm, Verdict]]:
        """The changes, with what the trials say of each."""
        base, changed = self.scores(self.arms[0]), self.arms[1:]
        pairs = [list(zip(self.scores(arm), base, strict=False)) for arm in changed]
        return [
            (arm, judge([own - other for own, other in each], len(self.seeds), self.level))
            for arm, each in zip(changed, pairs, strict=True)
        ]

    def require_same_tokens(self) -> None:
        """Raise `UserError` where trials were trained on different tokens."""
        if len({read_text(file) for file in self.folder.glob(f"*/{TOKENS}")}) > 1:
            raise UserError(
                f"{self.folder}: the text was changed between its trials, which cannot be compared;"
                " delete the folder, or give this experiment another name with --name"
            )

    def next_seeds(self, trained: int, at_once: int) -> tuple[int, ...]:
        """The seeds after the `trained` first that are trained before the next verdict: one, and
        two at first, or as many as keep a machine busy that trains `at_once` trials."""
        going_on = sum(verdict.verdict == "undecided" for _, verdict in self.verdicts())
        count = max(1 if trained else 2, at_once // (1 + going_on))
        return self.seeds[trained : trained + count]

    def due(self, seeds: Iterable[int], failed: Container[str] = ()) -> list[tuple[Arm, int]]:
        """The trials with `seeds` that are still to be trained: none of an arm that is decided, or
        whose name is among the `failed`."""
        undecided = [
            arm
            for arm, verdict in self.verdicts()
            if verdict.verdict == "undecided" and arm.name not in failed
        ]
        arms = [self.arms[0], *undecided] if undecided else []
        wanted = itertools.product(arms, seeds)
        return [(arm, seed) for arm, seed in wanted if self.score(arm, seed) is None]

    # ---- the budget

    def timed(self) -> dict[str, Path]:
        """The files with the speeds of the arms, by what decides how long their steps take."""
        first = {arm.steps: arm for arm in reversed(self.arms)}
        return {steps: self.trial(arm, self.seeds[0]) / SPEED for steps, arm in first.items()}

    def with_tokens(self) -> "Experiment":
        """This experiment with the tokens that its arms read within the minutes or joules, as they
        were timed. Raises `UserError` where energy is not measured."""
        costs = {steps: cost_of_token(file) for steps, file in self.timed().items()}
        if self.unit not in costs[self.arms[0].steps]:
            raise UserError(
                "--joules: this machine shows no counter of energy (docs/energy.md says which "
                "there are); give --minutes"
            )
        arms = [
            replace(
                arm,
                tokens=int(self.amount / cost[self.unit]),
                tokens_per_second=1 / cost["seconds"],
            )
            for arm, cost in ((arm, costs[arm.steps]) for arm in self.arms)
        ]
        found = replace(self, arms=tuple(arms)).checked()
        for arm in found.arms:
            config_of(self.file, arm.change, arm.tokens)  # which may be too few for its growth
        return found

    def checked(self) -> "Experiment":
        """This experiment. Raises `UserError` where the budget is too small for an arm."""
        for arm in self.arms:
            least = LEAST_STEPS * arm.config["pretrain"]["batch_tokens"]
            if arm.tokens is not None and arm.tokens < least:
                enough = self.amount * least / max(1, arm.tokens)
                raise UserError(
                    f"--{self.unit} {self.amount:g}: {arm.title} would take {arm.tokens:,} tokens, "
                    f"fewer than {LEAST_STEPS} steps, too few to measure; give {enough:.4g} "
                    f"{self.unit} or more"
                )
        return self

    # ---- files

    def write(self) -> None:
        """Write what is asked."""
        kept = ("name", "change", "tokens", "tokens_per_second")
        described = {
            "version": 1,
            "config": self.file,
            "arms": [{key: getattr(arm, key) for key in kept} for arm in self.arms],
            "seeds": self.seeds,
            "level": self.level,
            self.unit: self.amount,
            "question": self.question,
        }
        write_json(self.folder / QUESTION, seal(described))
        corpus = {"name": self.arms[0].config["corpus"]["name"]}
        run = {"run": self.folder.name, "results_dir": str(self.folder.parent), "corpus": corpus}
        with atomic_write(self.folder / OVERLAY) as file:
            write_yaml(run, file)

    def write_trial(self, arm: Arm, seed: int) -> Path:
        """Write the configuration of a trial; returns its folder."""
        folder, config = self.trial(arm, seed), arm.config
        own = {"run": folder.name, "results_dir": str(self.folder), "seed": seed}
        pretrain = config["pretrain"] | ({"tokens": arm.tokens} if arm.tokens else {})
        write_resolved(folder / RESOLVED, config | own | {"pretrain": pretrain})
        return folder


def prepare(
    file: Path,
    changes: Iterable[Change],
    seeds: Sequence[int] | int,
    level: float,
    *,
    unit: str,
    amount: float,
    name: str | None,
    swept: Iterable[Change] = (),
) -> Experiment:
    """The experiment that is asked for, in a new folder, or with what an earlier attempt measured.

    `seeds` may be their number, from that of the configuration on. A trial takes an `amount` of a
    `unit`: tokens, minutes or joules. Of the changes `swept`, those that train as an arm does are
    left out. Raises `UserError` for one of the other changes that does, for a change that is none,
    and where the folder holds another question.
    """
    tokens = int(amount) if unit == "tokens" else None
    arms: dict[str, Arm] = {}  # by what they train
    asked_for = [{}, *changes]
    alike = 0
    for number, change in enumerate(itertools.chain(asked_for, swept)):
        config = config_of(file, change, tokens)
        taken = [arm.name for arm in arms.values()]
        arm = Arm(arm_name(change, taken) if change else BASE, change, config, tokens)
        if (same := arms.get(arm.identity)) and number < len(asked_for):
            raise UserError(f"{arm.title}: trains as {same.title} does; leave it out")
        alike += same is not None
        arms.setdefault(arm.identity, arm)
    if len(arms) == 1:
        raise UserError("--sweep: each of its changes trains as the base does; change its values")
    if alike:
        log.line("sweep", f"{log.counted(alike, 'change')} left out, which train as another does")
    base, *_ = arms.values()
    if isinstance(seeds, int):
        seeds = range(base.config["seed"], base.config["seed"] + seeds)
    config_of(file, {"seed": max(seeds)}, tokens)  # which may be too large
    question = {
        "data": [rule_identity(base.config, rule) for rule in DATA_RULES],
        "arms": list(arms),
        "budget": {"tokens": None, "minutes": None, unit: amount},
        "seeds": [*seeds],
        "level": level,
    }
    run, results = base.config["run"], base.config["results_dir"]
    short = sha256_text(canonical_json(question))[:8]
    folder = Path(results, "experiments", name or f"{run}-{short}")
    asked = Experiment(
        str(file), folder, tuple(arms.values()), tuple(seeds), level, unit, amount, question
    ).checked()
    with explain_os_errors(folder):
        try:
            folder.mkdir(parents=True)  # of two that begin at once, one has the folder
        except FileExistsError:
            return resumed(asked)
    return asked


def config_of(file: Path | str, change: Change, tokens: int | None) -> Config:
    """The configuration of an arm, for so many tokens. Raises `UserError` where it is none."""
    overrides: Config = {}
    merge(overrides, copy.deepcopy(dict(change)))
    merge(overrides, {"max_hours": None} | ({"pretrain": {"tokens": tokens}} if tokens else {}))
    return load_files([file], overrides)


def resumed(asked: Experiment) -> Experiment:
    """`asked` with the budget that an earlier attempt found. Raises `UserError` where the folder
    holds something else."""
    path, other = asked.folder / QUESTION, "give this one another name with --name"
    if not path.is_file():
        raise UserError(f"{asked.folder}: is there and holds no experiment; {other}")
    origin = Origin("`nanoeuler experiment`", f"delete {asked.folder}, or {other}")
    kept = read_sealed(path, origin, "an experiment", "question", other)
    if kept["question"] != asked.question:
        raise UserError(f"{asked.folder}: holds an experiment with another question; {other}")
    budgets = [(each["tokens"], each["tokens_per_second"]) for each in kept["arms"]]
    arms = [
        replace(arm, tokens=tokens, tokens_per_second=speed)
        for arm, (tokens, speed) in zip(asked.arms, budgets, strict=True)
    ]
    return replace(asked, arms=tuple(arms))


def arm_name(change: Change, taken: Container[str]) -> str:
    """A name for folders: the change without its sections, and a number where that is taken."""
    told = [f"{key.rpartition('.')[2]}={value}" for key, value in leaves(change)]
    name = plain_name(",".join(told))
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def cost_of_token(file: Path) -> dict[str, float]:
    """Seconds, minutes, and joules where they are measured, of a token of pretraining in a plan of
    it, as `nanoeuler plan --json` prints it."""
    plan = read_json(file)
    stage = plan["stages"]["pretrain"]
    seconds = stage["depth"] / plan["tokens_per_second"] + stage["updates"] / stage["tokens"]
    joules = {"joules": seconds * sum(stage["watts"].values())} if stage["watts"] else {}
    return {"seconds": seconds, "minutes": seconds / 60, **joules}
