"""The stage `import`: a model of the Llama or the GPT-2 family from Hugging Face's folder."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from nanoeuler import log
from nanoeuler.config.yaml_file import front_matter
from nanoeuler.errors import UserError, brief
from nanoeuler.interchange.exporting import require_new
from nanoeuler.interchange.foreign_config import read_config
from nanoeuler.interchange.plain_model import NORM
from nanoeuler.model.adapters import ADAPTER_CONFIG
from nanoeuler.model.companions import CARD, TOKENIZER_CONFIG
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.files import CONFIG, MOST_CONFIG, TOKENIZER, WEIGHTS, SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import head_name
from nanoeuler.model.template import TEMPLATES, chat_template
from nanoeuler.model.weights_file import FLOATS, read_header, read_values, require_size
from nanoeuler.storage.files import read_bounded, read_json, sha256_file
from nanoeuler.tokenizer import gpt2_files
from nanoeuler.tokenizer.gpt2_files import HUGGING_FACE
from nanoeuler.tokenizer.huggingface_encoder import HuggingFaceEncoder
from nanoeuler.tokenizer.tokenizer_json import Reader, write_framed
from nanoeuler.tokenizer.vocabulary import Vocabulary

INDEX = f"{WEIGHTS}.index.json"
COMPUTED = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of the names of tensors that follow from the config: frequencies and causal masks."""
CHAT_TEMPLATE = "chat_template.jinja"
SENTENCEPIECE = "tokenizer.model"
MOST_TEMPLATE, MOST_SETTINGS = 1_000_000, 10_000_000
"""Bytes of a chat template, and of tokenizer_config.json."""


def import_folder(folder: Path, output: Path, template: str | None = None) -> SavedModel:
    """Write the model of Hugging Face's `folder` to the new model folder `output`.

    `template`: the one of TEMPLATES that it was tuned on; None: the folder tells, if it is ours.
    Raises `UserError` for a folder that is damaged, or a model that this project does not have.
    """
    require_new(output)
    require_folder(folder)
    keys = read_json(folder / CONFIG, MOST_CONFIG)
    config = read_config(folder / CONFIG, keys)
    vocabulary = read_vocabulary(folder, config, keys)
    files = weight_files(folder)
    windows = [config.layer_kind(layer)[0] for layer in range(config.layers)]
    for window in sorted({*windows} - {0}):
        seeing = f"{windows.count(window)} of {config.layers} layers see {window:,} tokens"
        log.line("window", seeing)
    parameters = read_weights(folder, files, config)
    begin = keys.get("bos_token_id")
    if begin is not None and begin != vocabulary.end_id:
        config, parameters = begin_with_end(config, parameters, begin, vocabulary.end_id)
    template = template or find_template(folder)
    hashes = {path.name: sha256_file(path) for path in files}
    name = folder.resolve().name
    info = {"imported": {"name": name, "licence": find_licence(folder), "sha256": hashes}}
    spare = config.vocab_size - len(vocabulary.tokens)
    rows = f", and {log.counted(spare, 'row')} of the embedding that no token has" * (spare > 0)
    log.line("tokenizer", f"{len(vocabulary.tokens):,} tokens{rows}")
    with tempfile.TemporaryDirectory() as scratch:
        framed = Path(scratch) / TOKENIZER  # says which token frames documents
        write_framed(framed, vocabulary)
        save_model(output, SavedModel(config, parameters, framed, "imported", template, info))
    return SavedModel(config, parameters, output / TOKENIZER, "imported", template, info)


def require_folder(folder: Path) -> None:
    if folder.is_file():
        with open(folder, "rb") as file:
            kind = "a GGUF file" if file.read(4) == b"GGUF" else "a file"
        raise UserError(
            f"{folder}: {kind}; give Hugging Face's folder of the model, with {CONFIG}, "
            f"{TOKENIZER} and {WEIGHTS}"
        )
    if (folder / ADAPTER_CONFIG).is_file():
        raise UserError(
            f"{folder}: a folder of adapters; name the model that they belong to: "
            f"nanoeuler import {folder} --base MODEL"
        )
    if not (folder / CONFIG).is_file():
        problem = "no such folder" if not folder.is_dir() else f"holds no {CONFIG}"
        if any(folder.glob("*.gguf")):
            problem = "a folder of GGUF files"
        raise UserError(f"{folder}: {problem}; give Hugging Face's folder of a model")


def without_rowless(vocabulary: Vocabulary, rows: int) -> Vocabulary:
    """A vocabulary without special tokens that the embedding has no row for, like that of images in
    Gemma 3's for text: no text has them, and the model never saw them."""
    rowless = {name: id for name, id in vocabulary.specials.items() if id >= rows}
    if not rowless or vocabulary.end_literal in rowless:
        return vocabulary
    names = ", ".join(repr(name) for name in [*rowless][:3])
    log.line("tokenizer", f"left out, as the embedding has no row for them: {names}")
    kept = {name: id for name, id in vocabulary.specials.items() if id < rows}
    tokens = [token for id, token in enumerate(vocabulary.tokens) if id not in rowless.values()]
    foreign = vocabulary.foreign
    if foreign is not None:
        added = [entry for entry in foreign["added_tokens"] if entry["content"] not in rowless]
        foreign = foreign | {"added_tokens": added}
    return replace(vocabulary, tokens=tokens, specials=kept, foreign=foreign)


def read_vocabulary(folder: Path, config: ModelConfig, keys: Mapping[str, Any]) -> Vocabulary:
    """The tokenizer; the embedding may have more rows than it has ids."""
    path = folder / TOKENIZER
    released = config.family == "gpt2" and all((folder / name).is_file() for name in HUGGING_FACE)
    if not path.is_file() and not released:
        remedy = "import reads a tokenizer in this form only, which the tokenizers library writes"
        if (folder / SENTENCEPIECE).is_file():
            remedy = (
                f"there is a {SENTENCEPIECE} only, of which transformers (with sentencepiece and "
                f"protobuf) makes one: AutoTokenizer.from_pretrained({str(folder)!r})"
                f".save_pretrained({str(folder)!r})"
            )
        raise UserError(f"{path}: no such file; {remedy}")
    eos = keys.get("eos_token_id")
    end_id = eos[0] if isinstance(eos, list) and eos else eos
    end_id = end_id if type(end_id) is int else None
    if path.is_file():
        known = "import reads byte-level BPE, and SentencePiece's with single bytes, only"
        vocabulary = Reader(path, known, end_id).vocabulary(read_json(path))
        vocabulary = without_rowless(vocabulary, config.vocab_size)
    else:
        vocabulary = gpt2_files.read(folder, HUGGING_FACE)
    if len(vocabulary.tokens) > config.vocab_size:
        raise UserError(
            f"{path}: has {len(vocabulary.tokens)} ids where the model's embedding has "
            f"{config.vocab_size} rows; give the tokenizer that belongs to the model"
        )
    if vocabulary.foreign is not None:
        try:
            HuggingFaceEncoder(vocabulary).try_out()
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
    end, begin = keys.get("eos_token_id"), keys.get("bos_token_id")
    ends = end if isinstance(end, list) else [end]
    if end is not None and vocabulary.end_id not in ends:
        raise UserError(
            f"{folder / CONFIG}: eos_token_id is {brief(end)}, but documents end with "
            f"{vocabulary.end_literal!r} in a nanoeuler model, which is {vocabulary.end_id} here; "
            "give a model that was trained so"
        )
    if others := [each for each in ends if each != vocabulary.end_id and end is not None]:
        log.line(
            "end", f"{vocabulary.end_id} ends documents here; of eos_token_id, {others} do not"
        )
    if begin is None or begin == vocabulary.end_id:
        return vocabulary
    if type(begin) is not int or begin not in vocabulary.specials.values():
        raise UserError(
            f"{folder / CONFIG}: bos_token_id is {brief(begin)}, which is no special token of "
            f"{TOKENIZER}; fetch the model again"
        )
    return vocabulary


def begin_with_end(
    config: ModelConfig, parameters: np.ndarray, begin: int, end: int
) -> tuple[ModelConfig, np.ndarray]:
    """Let the model read the token that ends documents as the one that begins them.

    One token does both in a nanoeuler model, and it is read only where a document begins. A tied
    embedding, which must go on writing the end, becomes a head of its own.
    """
    name = family_of(config).embedding
    tied = FlatBuffer(config, parameters)
    if config.tied:
        config = replace(config, tied=False)
        parameters = np.zeros(FlatBuffer.elements(config), np.float32)
        buffer = FlatBuffer(config, parameters)
        for tensor in tied.table:
            buffer[tensor.name][...] = tied[tensor.name]
        buffer[head_name(0)][...] = tied[name]
        log.line(
            "embedding",
            "copied as a head of its own: documents begin with another token than they end with, "
            "and a nanoeuler model has one for both",
        )
    embedding_VD = FlatBuffer(config, parameters)[name]
    embedding_VD[end] = embedding_VD[begin]
    return config, parameters


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: one, or those that its index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        hint = "its weights are in another format; " if pickled else ""
        raise UserError(
            f"{folder}: {hint}there is no {WEIGHTS}; save the model with "
            "save_pretrained(safe_serialization=True), or fetch it again"
        )
    index = read_json(folder / INDEX)
    named = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise UserError(f"{folder / INDEX}: not an index of weights; fetch it again")
    shards = sorted({folder / Path(name).name for name in named.values()})
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise UserError(
            f"{folder}: {log.counted(len(missing), 'file')} of {len(shards)} with weights missing, "
            f"such as {missing[0]}; fetch the model again"
        )
    return shards


def read_weights(folder: Path, files: list[Path], config: ModelConfig) -> np.ndarray:
    """A flat buffer with the weights in `files`."""
    require_size(config, files)
    parameters = np.zeros(FlatBuffer.elements(config), np.float32)
    buffer = FlatBuffer(config, parameters)
    missing = set(buffer.rows)
    heads = []  # of a tied embedding, which are the embedding again
    for path in files:
        for stored_name, shape, read in tensors_in(path):
            if stored_name.endswith(COMPUTED):
                continue
            if config.tied and stored_name == "lm_head.weight":
                heads.append(read())
                continue
            name = stored_name
            if config.family == "gpt2" and stored_name.startswith(("wte.", "wpe.", "h.", "ln_f.")):
                name = f"transformer.{stored_name}"  # as GPT-2 was released
            if name not in buffer.rows:
                raise UserError(
                    f"{path}: has a tensor {brief(name)}, which a nanoeuler model with the fields "
                    f"of its {CONFIG} does not have; give another model"
                )
            if name not in missing:
                raise UserError(f"{path}: tensor {name} is there twice; fetch the model again")
            expected = buffer.in_file(name).shape
            if shape != expected:
                raise UserError(
                    f"{path}: tensor {name} has shape {list(shape)} where {CONFIG} asks for "
                    f"{list(expected)}; fetch the model again"
                )
            tensor = read()
            if not np.isfinite(tensor).all():
                raise UserError(
                    f"{path}: tensor {name} holds values that are not finite; give another model"
                )
            if config.post_norms and name.endswith(NORM):
                tensor = tensor + 1  # a Gemma multiplies by 1 + weight
            buffer.in_file(name)[...] = tensor
            missing.discard(name)
    if missing:
        raise UserError(
            f"{folder}: its weights lack {log.counted(len(missing), 'tensor')}, such as "
            f"{min(missing)}; fetch the model again"
        )
    if not all(np.array_equal(head, buffer[family_of(config).embedding]) for head in heads):
        raise UserError(
            f"{folder}: lm_head.weight is not the embedding, where {CONFIG} says that they are one "
            "(tie_word_embeddings); set that to false, or give another model"
        )
    return parameters


def tensors_in(path: Path) -> Iterator[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]:
    """The name and shape of each tensor of a safetensors file, and what reads it as float32."""
    try:
        header, data = read_header(path)
        check_types(path, header)
        # the package checks the rest: that entries are whole and fit the data
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged or cut off ({error}); fetch the model again") from error
    for name in names:
        entry = header[name]
        yield name, tuple(entry["shape"]), partial(read_values, path, entry, data)


def check_types(path: Path, header: Mapping[str, Any]) -> None:
    """Refuse types of weights that import does not read, among them those that the safetensors
    package does not know."""
    for name, entry in header.items():
        kind = entry.get("dtype", "F32") if isinstance(entry, dict) else "F32"
        read = name != "__metadata__" and not name.endswith(COMPUTED)
        if read and kind not in list(FLOATS):
            raise UserError(
                f"{path}: tensor {brief(name)} has type {brief(kind)}; import reads "
                f"{', '.join(FLOATS)}, so give a model that is saved in one of these"
            )


def find_licence(folder: Path) -> str:
    """The licence in the front matter of the model card, which binds what is made of the model."""
    path = folder / CARD
    try:
        licence = front_matter(path).get("license") if path.is_file() else None
    except UserError as error:
        log.line("licence", f"{error}; until then it is unknown")
        licence = None
    return "unknown" if licence is None else str(licence)


def find_template(folder: Path) -> str | None:
    """The template of ours that the model was tuned on; None where it has none, or another."""
    if (folder / CHAT_TEMPLATE).is_file():
        content = read_bounded(folder / CHAT_TEMPLATE, MOST_TEMPLATE)
        found: Any = content.decode("utf-8", "replace")
    else:
        path = folder / TOKENIZER_CONFIG
        settings = read_json(path, MOST_SETTINGS) if path.is_file() else {}
        found = settings.get("chat_template") if isinstance(settings, dict) else None
    template = next((name for name in TEMPLATES if found == chat_template(name)), None)
    if template is None:
        log.line(
            "template",
            f"none{' of ours' if found else ''}: the model continues texts, as a base model does; "
            f"if it was tuned on one of ours, import it with --template {' or '.join(TEMPLATES)}",
        )
    return template
