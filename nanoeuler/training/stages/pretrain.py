"""Pretraining: all K heads on every token of the corpus.

    nanoeuler pretrain --config config/small.yaml --output results/small/pretrain \\
        --tokens data/corpora/books-and-web-100mb/tokens-512/manifest.json \\
        --tokenizer data/corpora/books-and-web-100mb/tokenizer-512/tokenizer.json
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler import log
from nanoeuler.config.settings import Pretrain
from nanoeuler.errors import UserError
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig, check_growth, coarsened
from nanoeuler.model.documents import TokenSlices
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.job import Job
from nanoeuler.training.parents import check_tokenizer, read_parent
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.streams import TextStream

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend


SAMPLE_TOKENS = 60
"""New tokens of the sample at each measurement."""


def job(inputs: Inputs[Pretrain], backend: "Backend", group: Group = ALONE) -> Job:
    """Training on token shards. Raises `UserError` for input that does not fit."""
    from nanoeuler.training.bigram import bigram_bits_per_byte  # loads the compiler

    config, tokens, tokenizer_path = inputs.config, inputs.data, inputs.tokenizer
    settings, seed = inputs.settings, config["seed"]
    model = ModelConfig.from_dict(config["model"])
    tokenizer, store = Tokenizer.load(tokenizer_path), TokenStore.open(tokens)
    store.check_tokenizer(tokenizer, tokenizer_path)
    check_tokenizer(tokenizer, tokenizer_path, model, started=settings.init_from is not None)
    check_length(store, tokens, model.context)
    own = store.tokens("train")
    old = TokenStore.open(settings.old_tokens) if settings.old_tokens else None
    if old:
        old.check_tokenizer(tokenizer, tokenizer_path)
    stream = training_stream(settings, model, own, old, tokenizer.end_id, seed, inputs.without)
    left_out = {"without": [*map(list, inputs.without)]} if inputs.without else {}
    describe_amount(len(stream.sequence), settings.tokens, model)
    tokens_per_step = stream.rows_per_step * stream.length
    steps = math.ceil(settings.tokens / tokens_per_step)
    check_growth(model, settings.grow_at, steps)
    first = coarsened(model, len(settings.grow_at))
    parent = (
        read_parent(settings.init_from, first, tokenizer, tokenizer_path)
        if settings.init_from
        else None
    )
    held_out = {
        source: (store.tokens("validation", source), store.bytes("validation", source))
        for source in store.held_out_sources()
    }
    floor = bigram_bits_per_byte(own, held_out, model.vocab_size, tokenizer.end_id)
    describe_floor(floor)

    def validate(transformer: Transformer) -> dict[str, float]:
        return {
            source: bits_per_byte(
                transformer,
                text,
                text_bytes,
                tokenizer,
                document_mask=settings.document_mask,
                limit_tokens=settings.validation_tokens,
                share=group.share,
            ).bits_per_byte
            for source, (text, text_bytes) in held_out.items()
        }

    def sample(transformer: Transformer) -> str:
        writer = Writer(transformer, tokenizer)
        prompt = settings.sample_prompt or ""
        reply = writer.stream(writer.frame(prompt), Sampling(seed=seed), SAMPLE_TOKENS)
        return " ".join((prompt + "".join(reply)).split())

    return Job(
        stage="pretrain",
        output=inputs.output,
        config=model,
        settings=settings,
        inputs={
            "model": model.to_dict(),
            "seed": seed,
            "tokens": store.fingerprint,
            "tokenizer": tokenizer.fingerprint,
            "parent": parent.fingerprint if parent else None,
            **({"old_tokens": old.fingerprint} if old else {}),
            **left_out,
        },
        stream=stream,
        schedule=Schedule.of(settings, steps),
        backend=backend,
        group=group,
        initial=lambda: (
            parent.start(first, seed)
            if parent
            else initial_parameters(first, seed, settings.embedding_std)
        ),
        grow_at=settings.grow_at,
        validate=validate,
        score=lambda values: sum(values.values()) / len(values),
        sample=sample if settings.sample_prompt else None,
        tuned=parent is not None,
        tokenizer_path=tokenizer_path,
        template=None,
        facts={"bigram_bits_per_byte": floor, "training_tokens": len(stream.sequence)},
        info={
            **(parent.inherited if parent else {}),
            "corpus": store.manifest.get("corpus"),
            "tokens_fingerprint": store.fingerprint,
            "document_mask": settings.document_mask,
            **left_out,
        },
    )


def training_stream(
    settings: Pretrain,
    model: ModelConfig,
    own: TokenSlices,
    old: TokenStore | None,
    end_id: int,
    seed: int,
    without: Sequence[tuple[int, int]] = (),
) -> TextStream:
    """The rows of the tokens `own`, mixed with `old` ones where there are any."""
    sequence = own
    if old:
        sequence = with_old(own, old.tokens("train"), settings.old_share, model.context, end_id)
    return TextStream(
        sequence,
        model.context,
        settings.batch_tokens,
        model.mtp_weights,
        end_id,
        settings.document_mask,
        seed,
        name="pretrain",
        without=without,
        short_rows_until=settings.short_rows_until or 0,
    )


def with_old(own: TokenSlices, old: TokenSlices, share: float, row: int, end_id: int) -> np.ndarray:
    """The tokens `own`, and behind them pieces of `old` from all over it, `share` as many."""
    pieces = min(math.ceil(share * len(own) / row), max(1, len(old) // row))
    starts = np.arange(pieces) * (len(old) / pieces)
    end = np.array([end_id])
    parts = [part for start in starts for part in (end, old[int(start) : int(start) + row])]
    mixed = np.concatenate([own[0 : len(own)], *parts])
    log.line("old text", f"{len(mixed) - len(own):,} tokens of what the model has learned before")
    return mixed


def check_length(store: TokenStore, tokens: Path, context: int) -> None:
    """Refuse text that is shorter than one row."""
    total = len(store.tokens("train"))
    if total <= context:
        raise UserError(
            f"{tokens}: the text has {total:,} tokens, fewer than one row of "
            f"model.context = {context}; add text or lower model.context"
        )


def describe_amount(text_tokens: int, budget: int, model: ModelConfig) -> None:
    """Say how often the text will be seen, and warn when it is too little for the model."""
    epochs = budget / text_tokens
    log.line(
        "text",
        f"{text_tokens:,} tokens of text, seen {epochs:.1f} times in {budget:,} tokens of training",
    )
    if epochs > 20 and text_tokens < parameter_count(model):
        log.line(
            "warning",
            f"{text_tokens:,} tokens are little for {parameter_count(model):,} parameters: "
            "most of the text will be memorised; "
            "add text to corpus.sources, lower pretrain.tokens, or take a smaller model",
        )


def describe_floor(floor: Mapping[str, float]) -> None:
    for source, value in floor.items():
        log.line(
            "bigram",
            f"{source}: a bigram model of the training tokens reaches {value:.3f} bits per byte; "
            "the model must get below",
        )
