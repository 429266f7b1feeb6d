"""The stages that learn a tokenizer from a corpus, encode a corpus, and import GPT-2's."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import link_or_copy
from nanoeuler.storage.folders import atomic_folder, require_ours
from nanoeuler.storage.integrity import HashedReading, write_note
from nanoeuler.system.machine import check_threads
from nanoeuler.system.threads import ordered_map
from nanoeuler.tokenizer import gpt2_files
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.corpus_text import AHEAD, Chunk, Corpus, chunks, sample
from nanoeuler.tokenizer.counting import count_pieces
from nanoeuler.tokenizer.shards import (
    MANIFEST,
    SHARD_TOKENS,
    ShardWriter,
    TokenStore,
    token_dtype,
    write_manifest,
)
from nanoeuler.tokenizer.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import SMALLEST, SPECIALS, build


def learn_tokenizer(
    corpus_path: Path, vocab_size: int, sample_bytes: int, output: Path, threads: int = 1
) -> Tokenizer:
    """Learn from `sample_bytes` of the training split and write a tokenizer.json.

    Raises `UserError` when the text does not yield `vocab_size` ids.
    """
    check_threads(threads)
    if vocab_size < SMALLEST:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}: it must be at least {SMALLEST} "
            f"({len(SPECIALS)} reserved ids and 256 bytes); raise it in the config"
        )
    if sample_bytes < 1:
        raise UserError(
            f"tokenizer.sample_bytes is {sample_bytes}: it must be at least 1; "
            "100000000 is plenty for most vocabularies"
        )
    texts = Corpus(corpus_path, threads=threads, sampled=sample_bytes).texts["train"]
    available = sum(len(text.data) for text in texts)
    with log.Progress("count words", min(sample_bytes, available), "MB", scale=1e-6) as progress:
        counts = count_pieces(sample(texts, sample_bytes), threads, progress=progress)
    tokenizer = Tokenizer(build(learn(counts, vocab_size)))
    if tokenizer.vocab_size < vocab_size:
        more = (
            "raise tokenizer.sample_bytes" if sample_bytes < available else "add text to the corpus"
        )
        raise UserError(
            f"{corpus_path}: {min(sample_bytes, available):,} bytes of text yield "
            f"{tokenizer.vocab_size} ids where tokenizer.vocab_size asks for {vocab_size}; "
            f"set it to {tokenizer.vocab_size} or less, or {more}"
        )
    tokenizer.save(output)
    write_note(output)  # the format has no room for a hash
    log.line(
        "bpe",
        vocab_size=vocab_size,
        sample_bytes=min(sample_bytes, available),
        distinct_words=len(counts),
        output=output,
    )
    return tokenizer


def take_tokenizer(given: Path, vocab_size: int, output: Path) -> Tokenizer:
    """Write the tokenizer of a model's folder, or of a tokenizer.json, as it is.

    Raises `UserError` when it has not `vocab_size` ids.
    """
    file = given / "tokenizer.json" if given.is_dir() else given
    tokenizer = Tokenizer.load(file)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{file}: has {tokenizer.vocab_size} ids where tokenizer.vocab_size is {vocab_size}; "
            f"set it to {tokenizer.vocab_size}"
        )
    tokenizer.save(output)
    write_note(output)  # the format has no room for a hash
    log.line("bpe", f"{file} is taken as it is", vocab_size=vocab_size, output=output)
    return tokenizer


def tokenize_corpus(
    corpus_path: Path,
    tokenizer_path: Path,
    output: Path,
    vocab_size: int,
    threads: int = 1,
    shard_tokens: int = SHARD_TOKENS,
    group: int | None = None,
) -> TokenStore:
    """Write the shards of a corpus, or of one group of it, and a manifest to the folder `output`.

    Each text is read once: it is compared with its hash while it is encoded. Raises `UserError` for
    one that has changed, and for a tokenizer without the `vocab_size` ids of the configuration.
    """
    check_threads(threads)
    require_ours(output)
    corpus = Corpus(corpus_path, group, threads, unread=True)
    tokenizer = Tokenizer.load(tokenizer_path)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{tokenizer_path}: it has {tokenizer.vocab_size} ids where tokenizer.vocab_size is "
            f"{vocab_size}; change that or run `nanoeuler bpe` again"
        )
    encode, dtype = partial(encode_chunk, corpus, tokenizer), token_dtype(vocab_size)
    total = sum(len(text.data) for texts in corpus.texts.values() for text in texts)
    with (
        atomic_folder(output) as folder,
        log.Progress("tokenize", total, "MB", scale=1e-6) as progress,
        ThreadPoolExecutor(1) as hasher,
    ):
        writers = {
            split: [
                ShardWriter(folder, f"{split}-{text.name}", dtype, shard_tokens) for text in texts
            ]
            for split, texts in corpus.texts.items()
        }
        readings = {
            split: [HashedReading(text.data.path, text.sha256, corpus.origin) for text in texts]
            for split, texts in corpus.texts.items()
        }
        for chunk, content, ids in ordered_map(encode, chunks(corpus), threads, AHEAD):
            hashing = hasher.submit(readings[chunk.split][chunk.source].update, content)
            writers[chunk.split][chunk.source].write(ids)
            hashing.result()
            progress.update(chunk.stop - chunk.start)
        for of_split in readings.values():
            for reading in of_split:
                reading.finish()
        splits = {
            split: joined(
                (text.source, writer.entry(text.documents, len(text.data)))
                for text, writer in zip(texts, writers[split], strict=True)
            )
            for split, texts in corpus.texts.items()
        }
        write_manifest(folder, tokenizer, corpus.fingerprint, splits)
    return opened(output)


def encode_chunk(
    corpus: Corpus, tokenizer: Tokenizer, chunk: Chunk
) -> tuple[Chunk, bytes, np.ndarray]:
    """Return a chunk with its text and ids, (tokens,): `</s>` before each document that starts in
    the chunk, and the text's."""
    text = corpus.texts[chunk.split][chunk.source]
    first, last = np.searchsorted(text.offsets, [chunk.start, chunk.stop])
    starts = text.offsets[first:last] - chunk.start  # of the documents that start in the chunk
    unframed = int(len(starts) == 0 or starts[0] != 0)  # 1 if it begins within a document
    borders = np.concatenate([[0] * unframed, starts, [chunk.stop - chunk.start]])
    content = text.data[chunk.start : chunk.stop]
    ids = tokenizer.encoder.encode(
        content, borders.astype(np.int64), frame=tokenizer.end_id, framed=unframed
    )
    return chunk, content, ids.astype(token_dtype(tokenizer.vocab_size))


def join_groups(folders: Sequence[Path], tokenizer_path: Path, output: Path) -> TokenStore:
    """Put the shards of all groups of a corpus together in the folder `output`.

    Raises `UserError` when they are not of one corpus and this tokenizer.
    """
    tokenizer = Tokenizer.load(tokenizer_path)
    stores = [TokenStore.open(folder / MANIFEST) for folder in folders]
    first = stores[0].manifest
    for store in stores:
        store.check_tokenizer(tokenizer, tokenizer_path)
        if store.manifest["corpus"] != first["corpus"]:
            raise UserError(
                f"{store.path}: of another corpus than {stores[0].path}; delete both and run "
                "`nanoeuler tokenize --group` again"
            )
    with atomic_folder(output) as folder:
        for store in stores:
            for file in store.path.parent.glob("*.bin"):
                link_or_copy(file, folder / file.name)
        splits = {
            split: joined(
                item for store in stores for item in store.manifest["splits"][split].items()
            )
            for split in first["splits"]
        }
        write_manifest(folder, tokenizer, first["corpus"], splits)
    return opened(output)


def joined(entries: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The manifest's entries of all sources, given those of each of their texts in order."""
    sources: dict[str, dict[str, Any]] = {}
    for source, entry in entries:
        before = sources.get(source, {})
        sources[source] = {key: before[key] + entry[key] if before else entry[key] for key in entry}
    return sources


def opened(output: Path) -> TokenStore:
    """Open tokens that have just been written, and say how many there are."""
    store = TokenStore.open(output / MANIFEST)
    for split in store.manifest["splits"]:
        tokens = sum(entry["tokens"] for entry in store.entries(split, None))
        size = store.bytes(split)
        mean = size / max(tokens, 1)
        log.line("tokenize", split=split, tokens=tokens, bytes=size, bytes_per_token=mean)
    return store


def import_gpt2(folder: Path, output: Path) -> Tokenizer:
    """Write the tokenizer.json of GPT-2's vocabulary in `folder`.

    Raises `UserError` when its files are missing or damaged.
    """
    tokenizer = Tokenizer(gpt2_files.read(folder))
    tokenizer.save(output)
    write_note(output)  # the format has no room for a hash
    log.line(
        "import-gpt2",
        vocab_size=tokenizer.vocab_size,
        merges=len(tokenizer.vocabulary.merges),
        output=output,
    )
    return tokenizer
