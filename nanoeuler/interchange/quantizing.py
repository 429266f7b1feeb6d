"""The stage `quantize`: a model folder with weights of fewer bits, and what that costs."""

from pathlib import Path

import numpy as np

from nanoeuler import log
from nanoeuler.backend import make_backend
from nanoeuler.errors import UserError
from nanoeuler.inference.api import LanguageModel
from nanoeuler.interchange.exporting import require_new
from nanoeuler.model.files import SavedModel, load_model, quantized, save_model
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.storage.files import read_bounded
from nanoeuler.tokenizer import Tokenizer

LONGEST_WINDOW = 2048
"""Tokens that are read together, of a context that may be longer than memory holds."""
MOST_TEXT = 100_000_000
"""Bytes of a text."""


def quantize_folder(folder: Path, output: Path, scheme: str, text: Path | None = None) -> None:
    """Write the model in `folder` to the new folder `output`, in int8 or int4.

    With `text`, the bits per byte of both are printed. Raises `UserError` for a model that cannot
    be had so.
    """
    require_new(output)
    content = read_text(text) if text else None
    before = load_model(folder)
    if before.quantized:
        raise UserError(
            f"{folder}: its weights are {before.quantized.scheme} already; give the model that it "
            "was quantized from"
        )
    after = quantized(before, scheme)
    assert after.quantized is not None
    save_model(output, after)
    bits = 8 * after.quantized.bytes / parameter_count(after.config)
    log.line("quantize", str(output), bits_per_weight=bits, megabytes=after.quantized.bytes / 1e6)
    if content is not None:
        first, second = (score(model, content) for model in (before, after))
        log.line(
            "bits_per_byte",
            f"{first:.4f} before, {second:.4f} in {scheme} ({second / first - 1:+.2%}), of {text}",
        )


def read_text(path: Path) -> str:
    try:
        text = read_bounded(path, MOST_TEXT).decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a text") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not UTF-8 (byte {error.start}); convert it, for instance with iconv"
        ) from error
    if not text:
        raise UserError(f"{path}: is empty; give a text")
    return text


def score(saved: SavedModel, text: str) -> float:
    """Bits per byte of `text`, read as one document on the CPU."""
    model = LanguageModel(saved, Tokenizer.load(saved.tokenizer_path), make_backend("cpu"))
    window, size = min(saved.config.context, LONGEST_WINDOW), len(text.encode("utf-8"))
    arguments = np.array(model.writer.frame(text), np.int32), size, model.tokenizer
    return bits_per_byte(
        model.transformer, *arguments, document_mask=False, window=window
    ).bits_per_byte
