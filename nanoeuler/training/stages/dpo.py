"""Direct preference optimization (Rafailov et al. 2023).

The chosen reply of a pair gains on the rejected one, measured against the model that training
started from. With `loss: simpo` a reply's reward is its log-probability per token, without a
reference but with a margin (Meng et al. 2024).

    nanoeuler dpo --config config/small.yaml --output results/small/dpo \\
        --preferences data/preferences/alpaca_farm/manifest.json \\
        --tokenizer data/corpora/books-and-web-100mb/tokenizer-512/tokenizer.json \\
        --parent results/small/sft/model
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from nanoeuler import log
from nanoeuler.config.settings import Dpo
from nanoeuler.config.stages import DPO
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.transformer import Transformer
from nanoeuler.model.weights_file import write_safetensors
from nanoeuler.storage.files import canonical_json, sha256_file, sha256_text, write_json
from nanoeuler.storage.folders import atomic_folder
from nanoeuler.storage.integrity import Origin, check_file, read_sealed, seal
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.system.arithmetic import exp, softplus
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.job import Job
from nanoeuler.training.lanes import engine_beside_steps
from nanoeuler.training.objectives import PreferenceLoss
from nanoeuler.training.pairs import PairFit, PairStream, TokenPair, encode_pairs, reply_sums
from nanoeuler.training.schedule import Amount
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.stages.inputs import Inputs, Start
from nanoeuler.training.streams import steps_in

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

REFERENCE, NOTE = "logprobs.safetensors", "reference.json"


def job(inputs: Inputs[Dpo], backend: "Backend", group: Group = ALONE) -> Job:
    """Aligning a parent with preference pairs. Raises `UserError` for input that does not fit."""
    settings, start = inputs.settings, Start(DPO, inputs, backend, group)
    model, tokenizer, parent, seed = start.model, start.tokenizer, start.parent, start.seed
    assert parent is not None  # see `Stage.needs_parent`
    files, template = start.files, parent.template
    by_length = settings.loss == "simpo"

    def encode(
        path: Path, name: str, apart: frozenset[str] = frozenset()
    ) -> tuple[list[TokenPair], PairFit]:
        pairs, fit = encode_pairs(path, tokenizer, template, model.context, apart)
        describe_fit(fit, name, settings, model.context)
        return pairs, fit

    pairs, fit = encode(files[0], "dpo", start.apart)
    calculator = parent.calculator or any(side.calls > 0 for pair in pairs for side in pair.sides)
    training, amount = training_stream(settings, model, pairs, tokenizer.end_id, seed)
    settings = amount.put_into(settings)
    held_out_pairs, _ = encode(files[1], "dpo-validation")
    batch = 2 * model.context * 8
    held_out = PairStream(
        held_out_pairs, settings, model, batch, tokenizer.end_id, seed, "dpo-validation"
    )
    steps = steps_in(amount.epochs, training)
    origin = start.hashes(calculator=calculator, template=template)
    reference: dict[str, np.ndarray] = {}

    def prepare() -> None:
        first = parent.at_start(model, seed)
        engine = engine_beside_steps(settings.reproducible, model, backend)
        reference.update(
            reference_logprobs(
                inputs.output / "reference",
                origin | computed_by(backend, settings.reproducible),
                lambda: Transformer(model, engine.from_host(first), engine, base=start.base),
                training,
                held_out,
                group,
            )
        )
        training.reference, held_out.reference = reference["train"], reference["validation"]

    objective = PreferenceLoss(
        settings.target_margin if by_length else 0.0, settings.label_smoothing
    )
    log.line(
        "pairs",
        f"{log.counted(len(training.pairs), 'pair')} in {log.counted(training.row_count, 'row')} "
        f"of up to {training.width} tokens, {log.counted(amount.epochs, 'epoch')}, "
        f"{log.counted(steps, 'step')} of {log.counted(training.rows_per_step, 'row')}",
    )
    return start.job(
        settings,
        origin,
        steps,
        stream=training,
        prepare=prepare,
        validate=lambda transformer: measure(
            transformer, held_out, objective, reference["tokens"], group.share
        ),
        score=lambda values: values["loss"],
        template=template,
        calculator=calculator,
        objective=objective,
        facts={
            "pairs": fit.pairs,
            "whole_share": fit.whole_share,
            "held_out_pairs": len(held_out.pairs),
        },
    )


def training_stream(
    settings: Dpo, model: ModelConfig, pairs: list[TokenPair], end_id: int, seed: int
) -> tuple[PairStream, Amount]:
    """The rows of the pairs for training, and how long it takes to train on them."""
    tokens = sum(len(side.tokens) - 1 for pair in pairs for side in pair.sides)
    amount = Amount.of(settings, tokens, 2 * model.context)
    return PairStream(pairs, settings, model, amount.batch_tokens, end_id, seed, "dpo"), amount


def check_fit(inputs: Inputs[Dpo], template: str) -> PairFit:
    """Count the pairs for training that the context holds. Raises `UserError` for too few."""
    tokenizer, context = Tokenizer.load(inputs.tokenizer), inputs.context
    file = RecordFolder(inputs.data, "preferences").file("train")
    _, fit = encode_pairs(file, tokenizer, template, context, inputs.apart()[0])
    describe_fit(fit, "dpo", inputs.settings, context)
    return fit


def describe_fit(fit: PairFit, name: str, settings: Dpo, context: int) -> None:
    """Say how many pairs the context holds; raise `UserError` when those are too few."""
    log.line(
        "fit",
        f"{name}: {fit.whole_share:.1%} of {fit.pairs:,} pairs fit whole into {context} tokens; "
        f"left out are {fit.prompt_too_long:,} whose prompt fills the context and "
        f"{fit.alike_when_cut:,} whose sides differ only beyond it",
    )
    if name == "dpo" and fit.whole_share < settings.minimum_fit_share:
        raise UserError(
            f"only {fit.whole_share:.1%} of the pairs fit whole into dpo.context = {context} "
            "tokens; raise dpo.context, use shorter pairs, or accept it by setting "
            f"dpo.minimum_fit_share to {math.floor(1000 * fit.whole_share) / 1000:g}"
        )


def reference_logprobs(
    folder: Path,
    origin: Mapping[str, Any],
    parent: Callable[[], Transformer],
    training: PairStream,
    held_out: PairStream,
    group: Group,
) -> dict[str, np.ndarray]:
    """Log-probabilities that the parent gives the pairs. The ranks compute them together.

    `train` and `validation` are sums per reply (rows, pairs, 2); `tokens` (rows, T) has every
    held-out target. They are computed once: `folder` keeps them under the hash of `origin`, which
    is all that they depend on, so that a resumed run has the same bits. Damaged ones are computed
    again. Rank 0 alone reads and writes.
    """
    path = folder / sha256_text(canonical_json(origin))[:16] / REFERENCE
    kept, *_ = group.exchange(None if group.rank else kept_reference(path))
    if kept is not None:
        return kept
    model = parent()
    with log.Progress("reference", training.row_count + held_out.row_count, "rows") as progress:
        sums: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
        tokens = []
        for name, stream in (("train", training), ("validation", held_out)):
            for rows, logprobs in all_logprobs(model, stream, share=group.share):
                sums[name].append(reply_sums(logprobs, rows.further[0]))
                if name == "validation":
                    tokens.append(logprobs)
                progress.update(len(logprobs))
    found = {name: np.concatenate(parts) for name, parts in sums.items()}
    found["tokens"] = np.concatenate(tokens)
    if group.rank:
        return found
    with atomic_folder(path.parent) as temporary:
        write_safetensors(temporary / REFERENCE, found)
        note = {"origin": origin, "sha256": sha256_file(temporary / REFERENCE)}
        write_json(temporary / NOTE, seal(note))
    return found


def kept_reference(path: Path) -> dict[str, np.ndarray] | None:
    """The log-probabilities at `path`; None where there are none, or damaged ones."""
    if not path.exists():
        return None
    try:
        found = read_reference(path)
    except (UserError, SafetensorError) as error:
        log.line("reference", f"computing them again: {error}")
        return None
    log.line("reference", f"log-probabilities of the parent taken from {path}")
    return found


def computed_by(backend: "Backend", reproducible: str | None) -> dict[str, Any]:
    """Everything besides model and pairs that the last bits of log-probabilities depend on."""
    names = ("engine", "device", "precision")
    found = {name: backend.environment().get(name) for name in names}
    if reproducible:  # by one thread, or by other products
        found["reproducible"] = reproducible
    return found | {"residual": backend.residual.name, "revision": DPO.revision}


def read_reference(path: Path) -> dict[str, np.ndarray]:
    """The log-probabilities at `path`. Raises `UserError` where they are not those written."""
    origin = Origin("the stage dpo", "the parent gives them anew")
    note = read_sealed(path.with_name(NOTE), origin, "their hash", "sha256", origin.remedy)
    check_file(path, note["sha256"], origin)
    return load_file(path)


def measure(
    transformer: Transformer,
    held_out: PairStream,
    objective: PreferenceLoss,
    reference_tokens_RT: np.ndarray,
    share: Share = in_order,
) -> dict[str, float]:
    """Loss, accuracy, margin, rewards and drift on the held-out pairs.

    A reward is β times the difference between the reply's log-probability and the reference's; with
    simpo, β times the log-probability per token. Accuracy is how often the chosen reply's reward is
    above the rejected one's (a tie counts half), margin is by how much. Drift estimates
    KL(reference ‖ policy) in nats per token by the mean of r − 1 − log r, where
    r = policy / reference (Schulman 2020), on the held-out replies instead of samples of the
    reference.
    """
    rewards, used, drift, start = [], [], [], 0
    for rows, logprobs in all_logprobs(transformer, held_out, share=share):
        spans, reference, scales, shares = rows.further
        rewards.append(scales * (reply_sums(logprobs, spans) - reference))
        used.append(shares > 0)
        reference_tokens = reference_tokens_RT[start : start + len(logprobs)]
        supervised = rows.targets[..., 0] >= 0
        log_ratio = (logprobs - reference_tokens)[supervised].astype(np.float64)
        drift.append(exp(log_ratio) - 1 - log_ratio)
        start += len(logprobs)
    pairs = [values[present] for values, present in zip(rewards, used, strict=True)]
    chosen, rejected = np.concatenate(pairs).T
    margins = chosen - rejected
    z, smoothing = margins - objective.margin, objective.smoothing
    losses = (1 - smoothing) * softplus(-z) + smoothing * softplus(z)
    return {
        "loss": float(losses.mean()),
        "accuracy": float(np.mean((margins > 0) + 0.5 * (margins == 0))),
        "margin": float(margins.mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
        "drift": float(np.concatenate(drift).mean()),
    }
