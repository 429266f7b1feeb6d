"""Direct preference optimization (Rafailov et al. 2023): the chosen reply of a pair gains on the rejected one, measured against where training began.

    nanoeuler dpo --config config/small.yaml --preferences data/preferences/alpaca_farm/manifest.json \\
        --tokenizer data/corpora/books-and-web/tokenizer-512/tokenizer.json --parent results/small/sft/model --output results/small/dpo

With `loss: simpo` a reply's reward is its log-probability per token, without a reference but with a margin (Meng et al. 2024).
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_folder, canonical_json, read_json, sha256_file, sha256_text
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import CONFIG
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.fingerprint import fingerprint
from nanoeuler.training.loop import Job, train
from nanoeuler.training.objectives import PreferenceLoss
from nanoeuler.training.pairs import PairFit, PairStream, encode_pairs, reply_sums
from nanoeuler.training.parents import find_weights, read_parent
from nanoeuler.training.pretrain import make_schedule
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.sft import check_tokenizer

UNTUNED_TEMPLATE = "alpaca"
"""What prompts are put in when the parent was tuned on no template."""
REFERENCE = "logprobs.safetensors"


def dpo(
    config: dict[str, Any],
    preferences: Path,
    tokenizer_path: Path,
    parent_folder: Path,
    output: Path,
    backend: Any,
) -> Path:
    """Align `parent_folder`'s model with the pairs of `preferences` (a manifest); returns the model folder."""
    section, seed = config["dpo"], config["seed"]
    model = ModelConfig.from_dict(config["model"])
    model = replace(model, context=section["context"] or model.context)
    tokenizer = Tokenizer.load(tokenizer_path)
    parent = read_parent(parent_folder, model)
    check_tokenizer(find_weights(parent_folder), tokenizer, tokenizer_path)
    template = read_template(parent.folder)
    manifest = read_json(preferences)
    files = [preferences.parent / name for name in ("train.jsonl", "validation.jsonl")]
    by_length = section["loss"] == "simpo"

    def stream(path: Path, batch_tokens: int, name: str) -> tuple[PairStream, PairFit]:
        pairs, fit = encode_pairs(path, tokenizer, template, model.context)
        describe_fit(fit, name, section, model.context)
        return PairStream(
            pairs,
            model.context,
            batch_tokens,
            model.mtp_heads,
            tokenizer.end_id,
            seed,
            name,
            section["beta"],
            by_length,
        ), fit

    training, fit = stream(files[0], section["batch_tokens"], "dpo")
    held_out, _ = stream(files[1], 2 * model.context * 8, "dpo-validation")
    data = [sha256_file(path) for path in files]
    origin = {
        "model": model.to_dict(),
        "parent": parent.fingerprint,
        "preferences": data,
        "tokenizer": tokenizer.fingerprint,
        "template": template,
    }
    reference = reference_logprobs(
        output / "reference",
        origin,
        Transformer(model, backend.from_host(parent.parameters), backend),
        training,
        held_out,
    )
    training.reference, held_out.reference = reference["train"], reference["validation"]
    objective = PreferenceLoss(
        section["target_margin"] if by_length else 0.0, section["label_smoothing"]
    )
    total_steps = max(1, math.ceil(section["epochs"] * training.rows / training.rows_per_step))
    rows = f"{log.counted(len(training.pairs), 'pair')} in {log.counted(training.rows, 'row')} of up to {training.width} tokens"
    log.line("pairs", f"{rows}, {log.counted(section['epochs'], 'epoch')}")
    job = Job(
        stage="dpo",
        output=output,
        config=model,
        section=section,
        fingerprint=fingerprint("dpo", section, seed=seed, **origin),
        stream=training,
        schedule=make_schedule(section, total_steps),
        backend=backend,
        initial=lambda: parent.parameters,
        validate=lambda transformer: measure(transformer, held_out, objective, reference["tokens"]),
        score=lambda values: values["loss"],
        tokenizer_path=tokenizer_path,
        template=template,
        objective=objective,
        tuned=True,
        facts={
            "pairs": fit.pairs,
            "whole_share": fit.whole_share,
            "held_out_pairs": len(held_out.pairs),
        },
        info={
            "preferences": {key: manifest.get(key) for key in ("name", "licence")},
            "parent": parent.fingerprint,
            **inherited(parent.folder),
        },
    )
    return train(job)


def read_template(folder: Path) -> str:
    """The template that the model of `folder` was tuned on (a checkpoint names none)."""
    description = (
        read_json(folder / CONFIG).get("nanoeuler", {}) if (folder / CONFIG).is_file() else {}
    )
    return description.get("template") or UNTUNED_TEMPLATE


def inherited(folder: Path) -> dict[str, Any]:
    """What a model folder says of the instructions that the parent was tuned on: their licence binds the aligned model too."""
    info = (
        read_json(folder / CONFIG).get("nanoeuler", {}).get("info", {})
        if (folder / CONFIG).is_file()
        else {}
    )
    return {key: info[key] for key in ("instructions",) if key in info}


def describe_fit(fit: PairFit, name: str, section: dict[str, Any], context: int) -> None:
    """Say how many pairs the context holds; stop when those are too few."""
    log.line(
        "fit",
        f"{name}: {fit.whole_share:.1%} of {fit.pairs:,} pairs fit whole into {context} tokens; left out are {fit.prompt_too_long:,} whose prompt fills "
        f"the context and {fit.alike_when_cut:,} whose sides differ only beyond it",
    )
    if name == "dpo" and fit.whole_share < section["minimum_fit_share"]:
        raise UserError(
            f"only {fit.whole_share:.1%} of the pairs fit whole into dpo.context = {context} tokens; raise dpo.context, use shorter pairs, "
            f"or accept it by setting dpo.minimum_fit_share to {math.floor(1000 * fit.whole_share) / 1000:g}"
        )


def reference_logprobs(
    folder: Path,
    origin: dict[str, Any],
    model: Transformer,
    training: PairStream,
    held_out: PairStream,
) -> dict[str, np.ndarray]:
    """What the parent thinks of the pairs: `train` and `validation`, sums per reply, and `tokens`, of every held-out target.

    Computed once: `folder` keeps them by the hash of what they depend on, so that a resumed run has the same bits.
    """
    path = folder / sha256_text(canonical_json(origin))[:16] / REFERENCE
    try:
        found = load_file(path)
        log.line("reference", f"log-probabilities of the parent taken from {path}")
        return found
    except (FileNotFoundError, SafetensorError):
        pass
    with log.Progress("reference", training.rows + held_out.rows, "rows") as progress:
        sums: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
        tokens = []
        for name, stream in (("train", training), ("validation", held_out)):
            for rows, logprobs in all_logprobs(model, stream):
                sums[name].append(reply_sums(logprobs, rows.further[0]))
                if name == "validation":
                    tokens.append(logprobs)
                progress.update(len(logprobs))
    found = {name: np.concatenate(parts) for name, parts in sums.items()} | {
        "tokens": np.concatenate(tokens)
    }
    with atomic_folder(path.parent) as temporary:
        save_file(found, temporary / REFERENCE)
    return found


def measure(
    transformer: Transformer,
    held_out: PairStream,
    objective: PreferenceLoss,
    reference_tokens_RT: np.ndarray,
) -> dict[str, float]:
    """The loss on held-out pairs; how often (a tie counts half) and by how much the chosen reply's reward is above the rejected one's; and drift.

    A reward is β times the reply's log-probability less the reference's (simpo: β times its log-probability per token). Drift estimates
    KL(reference ‖ policy) in nats per token by the mean of r − 1 − log r, r = policy / reference (Schulman 2020), on the held-out replies
    in place of samples of the reference.
    """
    rewards, used, drift, at = [], [], [], 0
    for rows, logprobs in all_logprobs(transformer, held_out):
        spans, reference, scales, shares = rows.further
        rewards.append(scales * (reply_sums(logprobs, spans) - reference))
        used.append(shares > 0)
        supervised = rows.targets[..., 0] >= 0
        log_ratio = (logprobs - reference_tokens_RT[at : at + len(logprobs)])[supervised].astype(
            np.float64
        )
        drift.append(np.expm1(log_ratio) - log_ratio)
        at += len(logprobs)
    chosen, rejected = np.concatenate(
        [values[places] for values, places in zip(rewards, used, strict=True)]
    ).T
    z = chosen - rejected - objective.margin
    losses = (1 - objective.smoothing) * np.logaddexp(0, -z) + objective.smoothing * np.logaddexp(
        0, z
    )
    margins = chosen - rejected
    return {
        "loss": float(losses.mean()),
        "accuracy": float(np.mean((margins > 0) + 0.5 * (margins == 0))),
        "margin": float(margins.mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
        "drift": float(np.concatenate(drift).mean()),
    }
