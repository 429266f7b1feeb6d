"""Pretraining: all K heads on every token of the corpus.

    nanoeuler pretrain --config config/small.yaml --tokens data/corpora/books-and-web/tokens-512/manifest.json \\
        --tokenizer data/corpora/books-and-web/tokenizer-512/tokenizer.json --output results/small/pretrain
"""

import math
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.transformer import Transformer, initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.bigram import bigram_bits_per_byte
from nanoeuler.training.fingerprint import fingerprint
from nanoeuler.training.loop import Job, train
from nanoeuler.training.parents import read_parent
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.streams import TextStream


def pretrain(
    config: dict[str, Any], tokens: Path, tokenizer_path: Path, output: Path, backend: Any
) -> Path:
    """Train on the token shards at `tokens`; returns the model folder. Raises `UserError` for input that does not fit."""
    section, seed = config["pretrain"], config["seed"]
    model = ModelConfig.from_dict(config["model"])
    tokenizer, store = Tokenizer.load(tokenizer_path), TokenStore.open(tokens)
    check_fit(model, tokenizer, tokenizer_path, store, tokens)
    sequence = store.tokens("train")
    total_steps = max(
        1, math.ceil(section["tokens"] / batch_tokens(section["batch_tokens"], model.context))
    )
    describe_amount(len(sequence), section["tokens"], model)
    stream = TextStream(
        sequence,
        model.context,
        section["batch_tokens"],
        model.mtp_weights,
        tokenizer.end_id,
        section["document_mask"],
        seed,
        name="pretrain",
    )
    parent = read_parent(section["init_from"], model) if section.get("init_from") else None
    held_out = {
        source: (store.tokens("validation", source), store.bytes("validation", source))
        for source in store.sources("validation")
    }
    floor = bigram_bits_per_byte(sequence, held_out, model.vocab_size, tokenizer.end_id)
    for source, value in floor.items():
        log.line(
            "bigram",
            f"{source}: a bigram model of the training tokens reaches {value:.3f} bits per byte; the model must get below",
        )

    def validate(transformer: Transformer) -> dict[str, float]:
        return {
            source: bits_per_byte(
                transformer,
                store.tokens("validation", source),
                store.bytes("validation", source),
                tokenizer,
                document_mask=section["document_mask"],
                limit_tokens=section["validation_tokens"],
            ).bits_per_byte
            for source in held_out
        }

    job = Job(
        stage="pretrain",
        output=output,
        config=model,
        section=section,
        fingerprint=fingerprint(
            "pretrain",
            section,
            model=model.to_dict(),
            seed=seed,
            tokens=store.fingerprint,
            tokenizer=tokenizer.fingerprint,
            parent=parent.fingerprint if parent else None,
        ),
        stream=stream,
        schedule=make_schedule(section, total_steps),
        backend=backend,
        initial=lambda: parent.parameters if parent else initial_parameters(model, seed),
        validate=validate,
        score=lambda values: sum(values.values()) / len(values),
        tokenizer_path=tokenizer_path,
        template=None,
        facts={"bigram_bits_per_byte": floor, "training_tokens": len(sequence)},
        info={
            "corpus": store.manifest.get("corpus"),
            "tokens_fingerprint": store.fingerprint,
            "document_mask": section["document_mask"],
        },
    )
    return train(job)


def make_schedule(section: dict[str, Any], total_steps: int) -> Schedule:
    return Schedule(
        section["schedule"],
        section["learning_rate"],
        total_steps,
        section["warmup_steps"],
        section["minimum_learning_rate_share"],
        section["decay_share"],
    )


def batch_tokens(asked: int, length: int) -> int:
    """Tokens of one step: as many whole rows of `length` as `asked` holds, at least one."""
    return max(1, asked // length) * length


def check_fit(
    model: ModelConfig, tokenizer: Tokenizer, tokenizer_path: Path, store: TokenStore, tokens: Path
) -> None:
    """Refuse a tokenizer of other shards, a vocabulary of another size, and text shorter than one row."""
    store.check_tokenizer(tokenizer, tokenizer_path)
    if model.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size is {model.vocab_size} but {tokenizer_path} has {tokenizer.vocab_size} entries; make them equal (tokenizer.vocab_size sets both)"
        )
    total = len(store.tokens("train"))
    if total <= model.context:
        raise UserError(
            f"{tokens}: the text has {total:,} tokens, fewer than one row of model.context = {model.context}; add text or lower model.context"
        )


def describe_amount(text_tokens: int, budget: int, model: ModelConfig) -> None:
    """Say before training how often the text will be seen, and when it is too little for the model."""
    epochs = budget / text_tokens
    log.line(
        "text",
        f"{text_tokens:,} tokens of text, seen {epochs:.1f} times in {budget:,} tokens of training",
    )
    if epochs > 20 and text_tokens < parameter_count(model):
        log.line(
            "warning",
            f"{text_tokens:,} tokens are little for {parameter_count(model):,} parameters: most of the text will be learned by heart; "
            "add text to corpus.sources, lower pretrain.tokens, or take a smaller model",
        )
