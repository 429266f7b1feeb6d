"""A trained model from Python: `nanoeuler.load(folder)`.

    >>> import nanoeuler
    >>> model = nanoeuler.load(folder, device="cpu")
    >>> model
    LanguageModel(1,049,216 parameters, stage sft, template alpaca, backend cpu)
    >>> answer = model.generate("Name a colour.", max_tokens=20, seed=3)
    >>> answer == model.generate("Name a colour.", max_tokens=20, seed=3)
    True

A tuned model answers in its template. With `raw` it continues the prompt itself, as a base model
always does:

    >>> text = model.generate("The fox", raw=True, max_tokens=20)

Logits and activations can be studied. A document starts with `</s>`, which `encode` never emits:

    >>> ids = [model.tokenizer.end_id, *model.tokenizer.encode("The fox")]
    >>> model.logits(ids).shape == (len(ids), model.config.vocab_size)
    True
    >>> activations = model.activations(ids)
    >>> activations.residual.shape == (model.config.layers + 1, len(ids), model.config.dim)
    True

Each layer is two Euler steps in depth, so the residual stream at the next layer is the sum of three
known terms:

    >>> import numpy as np
    >>> stream = activations.residual[0] + activations.attention[0] + activations.mlp[0]
    >>> bool(np.allclose(stream, activations.residual[1], atol=1e-5))
    True
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.backend import make_backend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.errors import UserError, brief
from nanoeuler.inference.finding import find_model
from nanoeuler.inference.forms import Form, regex_grammar, schema_grammar
from nanoeuler.inference.generate import Reply, Writer
from nanoeuler.inference.sampling import Sampling, at_least_one
from nanoeuler.model.files import SavedModel, load_model, quantized
from nanoeuler.model.in_use import is_halved, model_in_use
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer

MAX_TOKENS = 200
"""New tokens of a reply, by default."""


@dataclass(frozen=True)
class Activations:
    """The residual stream of one sequence of T tokens in L layers, and its steps, in float32.

    residual[l + 1] = residual[l] + attention[l] + mlp[l], up to rounding. The last entry of
    `residual` is the stream behind the last layer, before the final norm.
    """

    residual: np.ndarray  # (L + 1, T, dim): the stream at the input of each layer, and at the end
    attention: np.ndarray  # (L, T, dim): h · attention(norm(x)), the first Euler step of each layer
    mlp: np.ndarray  # (L, T, dim): h · mlp(norm(x)), the second


class LanguageModel:
    """A loaded model folder: its configuration, tokenizer and weights; it writes text."""

    def __init__(
        self,
        saved: SavedModel,
        tokenizer: Tokenizer,
        backend: Backend,
        *,
        speculation: bool = True,
        byte_cache: bool = False,
    ):
        self.config = saved.config
        self.tokenizer = tokenizer
        self.stage = saved.stage
        self.template = saved.template
        """Name of the prompt template that the model was tuned on.

        None for a base model, which continues text.
        """
        self.info = saved.info
        self.quantized = saved.quantized.scheme if saved.quantized else None
        """int8 or int4; None: weights in floats."""
        if saved.quantized and backend.reads_codes:
            weights = saved.quantized
            self.transformer = Transformer(saved.config, weights, backend, byte_cache=byte_cache)
        else:
            given = saved.config, saved.parameters, backend
            self.transformer = model_in_use(*given, byte_cache=byte_cache)
        self.writer = Writer(
            self.transformer, tokenizer, speculates=speculation, calculator=saved.calculator
        )

    @property
    def facts(self) -> str:
        """A description in a few words."""
        template = f"template {self.template}" if self.template else "no template"
        kind = self.quantized or ("float16" if is_halved(self.transformer) else None)
        quantized = f" in {kind}" if kind else ""
        return (
            f"{parameter_count(self.config):,} parameters{quantized}, stage {self.stage}, "
            f"{template}, "
            f"backend {self.transformer.backend.name}"
        )

    def __repr__(self) -> str:
        return f"LanguageModel({self.facts})"

    # ---- writing

    def generate(
        self,
        prompt: str,
        input: str = "",
        raw: bool = False,
        max_tokens: int = MAX_TOKENS,
        *,
        temperature: float = Sampling.temperature,
        top_k: int = Sampling.top_k,
        top_p: float = Sampling.top_p,
        seed: int = Sampling.seed,
        regex: str | None = None,
        schema: str | dict[str, Any] | None = None,
    ) -> str:
        """The text that the model writes behind `prompt`, up to `</s>` or `max_tokens`.

        - `prompt`: an instruction, which a tuned model answers in its template, or a text, which a
          base model continues.
        - `input`: further input to the instruction.
        - `raw`: continue `prompt` itself with a tuned model, too.
        - `max_tokens`: new tokens at most.
        - `temperature`: logits are divided by it; 0 always takes the likeliest token.
        - `top_k`: choose among the k likeliest tokens; 0 means all.
        - `top_p`: choose among the fewest tokens that hold this share of the probability.
        - `seed`: the same seed and arguments give the same text.
        - `regex`: a regular expression that the text matches, unless it ends at `max_tokens`.
        - `schema`: a JSON schema by which it is valid; or this as JSON.

        Raises TypeError for a prompt that is not text, and `UserError` for a value out of its
        range, or a form that is none, or that no text has.
        """
        return "".join(
            self.stream(
                prompt,
                input,
                raw,
                max_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                regex=regex,
                schema=schema,
            )
        )

    def stream(
        self,
        prompt: str,
        input: str = "",
        raw: bool = False,
        max_tokens: int = MAX_TOKENS,
        *,
        temperature: float = Sampling.temperature,
        top_k: int = Sampling.top_k,
        top_p: float = Sampling.top_p,
        seed: int = Sampling.seed,
        regex: str | None = None,
        schema: str | dict[str, Any] | None = None,
    ) -> Reply:
        """Like `generate`, piece by piece.

        `for piece in model.stream("Once"): print(piece, end="", flush=True)`
        """
        sampling = Sampling(temperature, top_k, top_p, seed)
        form = self.form(regex, schema)
        ids = self.writer.frame(self.prompt(prompt, input, raw))
        return self.writer.stream(ids, sampling, at_least_one(max_tokens), form=form)

    def form(self, regex: str | None, schema: str | dict[str, Any] | None) -> Form | None:
        """The form of a reply. Raises `UserError` where it is none, or no text has it."""
        if regex is not None and schema is not None:
            raise UserError("a reply has one form: give regex or schema")
        if schema is not None:
            return Form.checked(self.tokenizer, schema_grammar(schema), "the schema")
        if regex is not None:
            return Form.checked(self.tokenizer, regex_grammar(regex), "the regular expression")
        return None

    def prompt(self, prompt: str, input: str = "", raw: bool = False) -> str:
        """The text that the model continues.

        Raises `UserError` for an `input` when no template is used, and TypeError for what is not
        text.
        """
        for name, text in (("prompt", prompt), ("input", input)):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be one text, a str, not {brief(text)}")
        if self.template is not None and not raw:
            return TEMPLATES[self.template](prompt, input)
        if input:
            reason = (
                "raw leaves the template out"
                if raw
                else f"this model (stage {self.stage}) is a base model and has none"
            )
            raise UserError(
                f"input fills a place in a tuned model's template, but {reason}; "
                "make it a part of the prompt"
            )
        return prompt

    # ---- studying

    def logits(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Logits of head 0 behind every token: (T,) → (T, V), (B, T) → (B, T, V), in float32.

        Every token sees all tokens before it in its row. Rows may be longer than the context that
        the model was trained for.
        """
        ids = self.checked(ids)
        return self.writer.logits(np.atleast_2d(ids)).reshape(*ids.shape, -1)

    def activations(self, ids: Sequence[int] | np.ndarray) -> Activations:
        """The residual stream and every Euler step of one sequence of token ids, (T,)."""
        ids = self.checked(ids)
        if ids.ndim != 1:
            raise ValueError(
                f"activations takes the ids of one sequence, (T,); these have shape {ids.shape}"
            )
        model = self.transformer
        buffers = model.forward(Batch.of_documents(ids[None], model.backend), training=True)

        def host(array: Array) -> np.ndarray:
            return np.array(model.backend.to_host(array), np.float32)

        def step(index: int) -> np.ndarray:
            """h · f(norm(x)) of a block."""
            block, weights = model.blocks[index], model.weights.blocks[index]
            block.step(model.backend, weights, buffers.blocks[index], buffers.stream.delta)
            return block.form.step_size * host(buffers.stream.delta)

        blocks = range(len(model.blocks))
        return Activations(
            residual=np.stack([host(x) for x in buffers.points[::2]]),
            attention=np.stack([step(index) for index in blocks[::2]]),
            mlp=np.stack([step(index) for index in blocks[1::2]]),
        )

    def checked(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """`ids` as int32. Raises ValueError for those that are not token ids of this model."""
        ids = np.asarray(ids)
        if ids.ndim not in (1, 2) or ids.size == 0 or ids.dtype.kind not in "iu":
            raise ValueError(
                "ids must be integers of shape (T,) or (B, T) with at least one token; "
                f"these have shape {ids.shape} and type {ids.dtype}"
            )
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise ValueError(
                f"ids must lie from 0 to {self.config.vocab_size - 1}; "
                f"these reach from {ids.min()} to {ids.max()}"
            )
        return ids.astype(np.int32)


def load(
    folder: str | Path,
    device: str = "auto",
    gpus: int | None = None,
    precision: str = "auto",
    speculation: bool = True,
    quantize: str | None = None,
    kv_cache: str | None = None,
) -> LanguageModel:
    """Load a trained model for use from Python.

    - `folder`: a model folder, such as results/demo/sft/model, or the folder of a stage or a run,
      such as results/demo, which stands for its last model.
    - `device`: auto (a GPU where there is one), cpu, cuda, webgpu, or reference (NumPy, slow).
    - `gpus`: 1 or 0; 0 forces the CPU, None takes what `device` says.
    - `precision`: of a GPU's products and activations: fp32, tf32 or bf16; auto is bf16. By WebGPU
      fp32 or fp16, of what is kept in memory; auto has the weights alone in fp16, where the GPU
      reads it.
    - `speculation`: tokens are drafted, from the text or by the model's MTP heads, and checked
      together. The text is the same without, and slower.
    - `quantize`: round the weights to int8 or int4, for speed and memory on a CPU.
    - `kv_cache`: int8 keeps keys and values of past tokens in 8 bits, for speed and memory of long
      texts on a CPU.

    Raises `UserError` when there is no model, or its files are damaged or do not belong together.
    """
    backend = make_backend(device, gpus, precision)
    return load_on(backend, folder, speculation=speculation, quantize=quantize, kv_cache=kv_cache)


def load_on(
    backend: Backend,
    folder: str | Path,
    *,
    speculation: bool = True,
    quantize: str | None = None,
    kv_cache: str | None = None,
) -> LanguageModel:
    """Like `load`, on an engine that is there already."""
    if kv_cache not in (None, "int8"):
        raise UserError(f"kv_cache {kv_cache}: it must be int8, or left out")
    saved = load_model(find_model(Path(folder)), as_codes=backend.reads_codes)
    for name, value in {"quantize": quantize, "kv_cache": kv_cache}.items():
        if value is not None and not backend.reads_codes:
            raise UserError(
                f"{name} {value}: the engine {backend.name} computes with floats; use "
                "--device cpu, or leave it out"
            )
    if quantize is not None:
        saved = quantized(saved, quantize)
    tokenizer = Tokenizer.load(saved.tokenizer_path)
    if tokenizer.vocab_size > saved.config.vocab_size:
        raise UserError(
            f"{saved.tokenizer_path}: has {tokenizer.vocab_size} tokens where the model has "
            f"{saved.config.vocab_size}; it is the tokenizer of another run"
        )
    if saved.calculator and tokenizer.call_ids is None:
        raise UserError(
            f"{saved.tokenizer_path}: has no tokens for calls of the calculator, which the model "
            "has learned; it is the tokenizer of another run"
        )
    return LanguageModel(
        saved, tokenizer, backend, speculation=speculation, byte_cache=kv_cache is not None
    )
