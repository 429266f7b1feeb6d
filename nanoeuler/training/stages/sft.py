"""Supervised fine-tuning on instructions; the loss is on each response and its `</s>` only.

    nanoeuler sft --config config/small.yaml --output results/small/sft \\
        --instructions data/instructions/alpaca/manifest.json \\
        --tokenizer data/corpora/books-and-web-100mb/tokenizer-512/tokenizer.json \\
        --parent results/small/pretrain/model
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler import log
from nanoeuler.config.settings import Sft
from nanoeuler.config.stages import SFT
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.likelihood import Share
from nanoeuler.model.transformer import Transformer
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.job import Job
from nanoeuler.training.records import Fit, RecordStream, TokenRecord, encode_records
from nanoeuler.training.schedule import Amount
from nanoeuler.training.scoring import all_logprobs
from nanoeuler.training.stages.inputs import Inputs, Start
from nanoeuler.training.streams import steps_in

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend


def job(inputs: Inputs[Sft], backend: "Backend", group: Group = ALONE) -> Job:
    """Tuning on instruction records; without a parent the first weights are random.

    Raises `UserError` for input that does not fit.
    """
    settings, start = inputs.settings, Start(SFT, inputs, backend, group)
    model, tokenizer, parent, seed = start.model, start.tokenizer, start.parent, start.seed
    files, template = start.files, settings.template
    records, fit = encode_records(files[0], tokenizer, template, model.context, start.apart)
    describe_fit(fit, settings, model.context)
    calculator = fit.calls > 0 or (parent is not None and parent.calculator)
    held_out, _ = encode_records(files[1], tokenizer, template, model.context)
    stream, amount = training_stream(settings, model, records, tokenizer.end_id, seed)
    validation = RecordStream(
        held_out, model.context, model.context * 8, (1.0,), tokenizer.end_id, seed, "sft-validation"
    )
    settings = amount.put_into(settings)
    steps = steps_in(amount.epochs, stream)
    log.line(
        "records",
        f"{log.counted(len(records), 'record')} in {log.counted(stream.row_count, 'row')} of up to "
        f"{stream.width} tokens, {log.counted(amount.epochs, 'epoch')}, "
        f"{log.counted(steps, 'step')} of {log.counted(stream.rows_per_step, 'row')}",
    )
    return start.job(
        settings,
        start.hashes(calculator=calculator),
        steps,
        stream=stream,
        validate=lambda transformer: {"loss": response_loss(transformer, validation, group.share)},
        score=lambda values: values["loss"],
        template=template,
        calculator=calculator,
        facts={
            "records": fit.records,
            "whole_share": fit.whole_share,
            "kept_response_share": fit.kept_share,
            "from_scratch": parent is None,
        },
    )


def training_stream(
    settings: Sft, model: ModelConfig, records: list[TokenRecord], end_id: int, seed: int
) -> tuple[RecordStream, Amount]:
    """The rows of the records for training, and how long it takes to train on them."""
    tokens = sum(len(each.tokens) - 1 for each in records)
    amount = Amount.of(settings, tokens, model.context)
    stream = RecordStream(
        records,
        model.context,
        amount.batch_tokens,
        model.mtp_weights,
        end_id,
        seed,
        "sft",
        by_record=settings.weighting == "record",
    )
    return stream, amount


def check_fit(inputs: Inputs[Sft], template: str) -> Fit:
    """Count the records for training that the context holds. Raises `UserError` for too few."""
    tokenizer, context = Tokenizer.load(inputs.tokenizer), inputs.context
    file = RecordFolder(inputs.data, "instructions").file("train")
    _, fit = encode_records(file, tokenizer, template, context, inputs.apart()[0])
    describe_fit(fit, inputs.settings, context)
    return fit


def describe_fit(fit: Fit, settings: Sft, context: int) -> None:
    """Say how much of the records the context holds; raise `UserError` when that is too little."""
    log.line(
        "fit",
        f"{fit.whole_share:.1%} of {fit.records:,} records fit whole into {context} tokens; "
        f"{fit.kept_share:.1%} of the response tokens are kept; "
        f"{fit.without_response:,} records without room for a response are dropped",
    )
    if fit.calls or fit.calls_dropped:
        log.line(
            "calculator",
            f"{log.counted(fit.calls, 'call')}; {fit.calls_dropped:,} others say what the "
            "calculator does not, or the tokenizer has no tokens for them: only their text is kept",
        )
    if fit.whole_share < settings.minimum_fit_share:
        raise UserError(
            f"only {fit.whole_share:.1%} of the records fit whole into sft.context = {context} "
            "tokens; raise sft.context, use shorter records, or accept it by setting "
            f"sft.minimum_fit_share to {math.floor(1000 * fit.whole_share) / 1000:g}"
        )


def response_loss(transformer: Transformer, stream: RecordStream, share: Share) -> float:
    """Nats per response token (`</s>` included) of head 0 on all rows of `stream`."""
    total, count = 0.0, 0
    for rows, logprobs in all_logprobs(transformer, stream, share=share):
        total -= float(logprobs.sum(dtype=np.float64))
        count += int((rows.targets[..., 0] >= 0).sum())
    return total / max(1, count)
