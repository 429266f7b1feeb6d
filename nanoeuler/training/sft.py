"""Supervised fine-tuning on instructions: the same loop, other rows; the loss is on the response and its `</s>` only.

    nanoeuler sft --config config/small.yaml --instructions data/instructions/alpaca/manifest.json \\
        --tokenizer data/corpora/books-and-web/tokenizer-512/tokenizer.json --parent results/small/pretrain/model --output results/small/sft
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.files import read_json, sha256_file
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.transformer import Transformer, initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.fingerprint import fingerprint
from nanoeuler.training.loop import Job, train
from nanoeuler.training.parents import find_weights, read_parent
from nanoeuler.training.pretrain import make_schedule
from nanoeuler.training.records import Fit, RecordStream, encode_records
from nanoeuler.training.scoring import all_logprobs


def sft(
    config: dict[str, Any],
    instructions: Path,
    tokenizer_path: Path,
    parent_folder: Path | None,
    output: Path,
    backend: Any,
) -> Path:
    """Tune `parent_folder`'s model (None: random weights) on the records of `instructions`; returns the model folder."""
    section, seed = config["sft"], config["seed"]
    model = ModelConfig.from_dict(config["model"])
    model = replace(model, context=section["context"] or model.context)
    tokenizer = Tokenizer.load(tokenizer_path)
    if model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size is {model.vocab_size} but {tokenizer_path} has {tokenizer.vocab_size} entries; use the tokenizer that the model was trained with"
        )
    parent = read_parent(parent_folder, model) if parent_folder else None
    if parent:
        check_tokenizer(find_weights(parent_folder), tokenizer, tokenizer_path)
    manifest = read_json(instructions)
    records, fit = encode_records(
        instructions.parent / "train.jsonl", tokenizer, section["template"], model.context
    )
    describe_fit(fit, section, model.context)
    held_out, _ = encode_records(
        instructions.parent / "validation.jsonl", tokenizer, section["template"], model.context
    )
    stream = RecordStream(
        records,
        model.context,
        section["batch_tokens"],
        model.mtp_weights,
        tokenizer.end_id,
        seed,
        "sft",
        by_record=section["weighting"] == "record",
    )
    validation = RecordStream(
        held_out,
        model.context,
        model.context * 8,
        (1.0,),
        tokenizer.end_id,
        seed,
        name="sft-validation",
    )
    total_steps = max(1, math.ceil(section["epochs"] * stream.rows / stream.rows_per_step))
    rows = f"{log.counted(len(records), 'record')} in {log.counted(stream.rows, 'row')} of up to {stream.width} tokens"
    log.line("records", f"{rows}, {log.counted(section['epochs'], 'epoch')}")
    job = Job(
        stage="sft",
        output=output,
        config=model,
        section=section,
        fingerprint=fingerprint(
            "sft",
            section,
            model=model.to_dict(),
            seed=seed,
            instructions=[
                sha256_file(instructions.parent / name)
                for name in ("train.jsonl", "validation.jsonl")
            ],
            tokenizer=tokenizer.fingerprint,
            parent=parent.fingerprint if parent else None,
        ),
        stream=stream,
        schedule=make_schedule(section, total_steps),
        backend=backend,
        initial=lambda: parent.parameters if parent else initial_parameters(model, seed),
        validate=lambda transformer: {"loss": response_loss(transformer, validation)},
        score=lambda values: values["loss"],
        tokenizer_path=tokenizer_path,
        template=section["template"],
        tuned=parent is not None,
        facts={
            "records": fit.records,
            "whole_share": fit.whole_share,
            "kept_response_share": fit.kept_share,
            "from_scratch": parent is None,
        },
        info={
            "instructions": {key: manifest.get(key) for key in ("name", "licence")},
            "parent": parent.fingerprint if parent else None,
        },
    )
    return train(job)


def check_tokenizer(parent: Path, tokenizer: Tokenizer, tokenizer_path: Path) -> None:
    """Refuse a tokenizer other than the one that the parent was trained with (a checkpoint carries none)."""
    theirs = parent / "tokenizer.json"
    if theirs.is_file() and Tokenizer.load(theirs).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{tokenizer_path} is another tokenizer than {theirs}, which the model was trained with; use that one"
        )


def describe_fit(fit: Fit, section: dict[str, Any], context: int) -> None:
    """Say how much of the records the context holds; stop when that is too little."""
    log.line(
        "fit",
        f"{fit.whole_share:.1%} of {fit.records:,} records fit whole into {context} tokens; {fit.kept_share:.1%} of the response tokens are kept; "
        f"{fit.without_response:,} records without room for a response are dropped",
    )
    if fit.whole_share < section["minimum_fit_share"]:
        raise UserError(
            f"only {fit.whole_share:.1%} of the records fit whole into sft.context = {context} tokens; raise sft.context, use shorter records, "
            f"or accept it by setting sft.minimum_fit_share to {math.floor(1000 * fit.whole_share) / 1000:g}"
        )


def response_loss(transformer: Transformer, stream: RecordStream) -> float:
    """Nats per response token (`</s>` included) of head 0 on all rows of `stream`."""
    total, count = 0.0, 0
    for rows, logprobs in all_logprobs(transformer, stream):
        total -= float(logprobs.sum(dtype=np.float64))
        count += int((rows.targets[..., 0] >= 0).sum())
    return total / max(1, count)
