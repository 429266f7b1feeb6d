"""Write a model as a GGUF file, for llama.cpp and what is built on it, with Ollama's Modelfile.

llama.cpp turns neighbouring elements of q and k in its architecture "llama", where we turn halves
of a head; so their rows are brought into its order. Its "qwen3" turns halves, too.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.backend.quantized import BLOCK, FORMATS, Quantized
from nanoeuler.errors import UserError, brief
from nanoeuler.inference.sampling import Sampling
from nanoeuler.interchange.plain_model import PlainModel, cast, plain_config, plain_model
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import FAMILIES
from nanoeuler.model.files import SavedModel, quantized
from nanoeuler.model.rope_scaling import Linear, Llama3, Yarn
from nanoeuler.model.rotary import rope_scale
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.template import TEMPLATES, chat_template, split_prompt
from nanoeuler.model.transformers_config import transformers_type
from nanoeuler.model.weights_file import norms_of_ones
from nanoeuler.storage.folders import atomic_folder
from nanoeuler.tokenizer import tokenizer_json
from nanoeuler.tokenizer.vocabulary import Vocabulary

if TYPE_CHECKING:
    import gguf

FILE, MODELFILE = "model.gguf", "Modelfile"
FILE_TYPES = {
    **{"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"},
    **{"q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"},
}
SCHEMES = {"q8_0": "int8", "q4_0": "int4"}
"""What the model is in memory that has these numbers."""
NEIGHBOURS = "llama", "smollm3"
"""Architectures in which neighbouring elements are turned."""
SMOLLM3_LAYERS = 1, 1, 1, 0
"""Which layers have rotary positions in llama.cpp's architecture "smollm3"."""
GEMMA3_THETA = 10_000.0
"""Base of rotary positions in windows of its architecture "gemma3"."""
GEMMAS = {"gemma2": (2, 46), "gemma3": (6, 62)}
"""Architecture → the how-many-th layers see all tokens there, and the layers of the model whose
scores are divided by √(dim / heads): the one of 27 B parameters."""


def write_gguf(folder: Path, saved: SavedModel, dtype: str) -> None:
    """Write `saved` and a Modelfile to `folder`, which appears whole or not at all.

    Raises `UserError` without the package gguf, and for a model whose rows blocks don't divide.
    """
    try:
        import gguf
    except ImportError as error:
        raise UserError(
            "GGUF files are written by the package gguf, which is not installed; install it with "
            "make install EXTRAS=gguf, or pip install 'nanoeuler[gguf]'"
        ) from error
    plain = in_codes(saved, SCHEMES[dtype]) if dtype in SCHEMES else plain_model(saved)
    require_known_layers(plain.config)
    require_known_scaling(plain.config)
    vocabulary = tokenizer_json.read_unchecked(saved.tokenizer_path)
    with atomic_folder(folder) as temporary:
        architecture = architecture_of(plain.config)
        writer = gguf.GGUFWriter(temporary / FILE, architecture)
        writer.add_name(f"nanoeuler {saved.stage}")
        writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[dtype]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_shape(writer, plain.config)
        add_tokenizer(writer, vocabulary, plain.config.vocab_size)
        if saved.template in TEMPLATES:
            writer.add_chat_template(chat_template(saved.template))
        add_tensors(writer, plain, architecture, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (temporary / MODELFILE).write_text(modelfile(saved, vocabulary), encoding="utf-8")


def architecture_of(config: ModelConfig) -> str:
    """The name of llama.cpp's code that computes a model of these fields."""
    if config.family == "gpt2":
        return "gpt2"
    known = transformers_type(config)
    return {None: "llama", "mistral": "llama", "gemma3_text": "gemma3"}.get(known, str(known))


def require_known_layers(c: ModelConfig) -> None:
    """Refuse layers that llama.cpp would compute otherwise."""
    if (architecture := architecture_of(c)) in GEMMAS:
        require_known_gemma(c, architecture)
        return
    if any(c.layer_kind(layer)[0] for layer in range(c.layers)):
        field, reason = "windows", "llama.cpp computes attention without a window"
    elif c.rope_layers and c.rope_layers != SMOLLM3_LAYERS:
        field, reason = "rope_layers", f"llama.cpp knows {list(SMOLLM3_LAYERS)} alone"
    else:
        return
    raise UserError(
        f"--format gguf: model.{field} is {list(getattr(c, field))}, but {reason}; use --format hf"
    )


def require_known_gemma(c: ModelConfig, architecture: str) -> None:
    """Refuse a Gemma that llama.cpp would compute otherwise: its code fixes what is no key."""
    (period, largest), two = GEMMAS[architecture], architecture == "gemma2"
    windows = [c.layer_kind(layer)[0] for layer in range(c.layers)]
    usual = [max(windows) * ((layer + 1) % period != 0) for layer in range(c.layers)]
    scalar = c.dim / c.heads if c.layers == largest else c.head_size
    theta = c.window_rope_theta if max(windows) else GEMMA3_THETA
    known = {
        "windows": (windows == usual, f"one window in all but each {period}th layer"),
        "query_scalar": ((c.query_scalar or c.head_size) == scalar, f"{scalar:g}"),
        "attention_cap": ((c.attention_cap is not None) == two, "one" if two else "none"),
        "logit_cap": ((c.logit_cap is not None) == two, "one" if two else "none"),
        "tied": (c.tied or not two, "a tied embedding"),
        "window_rope_theta": (two or theta == GEMMA3_THETA, f"{GEMMA3_THETA:g}"),
    }
    for field, (is_known, words) in known.items():
        if not is_known:
            value = getattr(c, field)
            raise UserError(
                f"--format gguf: model.{field} is {list(value) if value == c.windows else value}, "
                f"but llama.cpp's {architecture} always has {words}; use --format hf"
            )


def require_known_scaling(c: ModelConfig) -> None:
    """Refuse scaled rotary positions that llama.cpp would compute otherwise."""
    match c.rope_scaling:
        case Llama3() if architecture_of(c) != "llama":
            reason = "llama.cpp has llama3 without QK-norm only"
        case Yarn() if architecture_of(c) in GEMMAS:
            reason = "llama.cpp has linear for a Gemma only"
        case Yarn() as yarn if yarn != Yarn(
            type="yarn", factor=yarn.factor, original_context=yarn.original_context
        ):
            reason = "llama.cpp has yarn with the usual betas, attention factor and truncate only"
        case _:
            return
    raise UserError(
        f"--format gguf: model.rope_scaling is {brief(asdict(c.rope_scaling))}, but {reason}; use "
        "--format hf"
    )


def in_codes(saved: SavedModel, scheme: str) -> PlainModel:
    """The model with head 0 only and its matrices `Quantized`, (out, in). ffn is filled up to whole
    blocks by zeros, which change nothing.

    Raises `UserError` where other rows are no whole blocks.
    """
    config, ones = plain_config(saved.config), norms_of_ones(saved.config)
    buffer = quantized(saved, scheme).quantized
    assert buffer is not None
    more = round_up(config.ffn, BLOCK) - config.ffn
    tensors: dict[str, Any] = {}
    for tensor in tensor_table(config):
        values: Any = ones[tensor.name] if tensor.name in ones else buffer[tensor.name]
        if tensor.name.endswith(("gate_proj.weight", "up_proj.weight")):
            codes, scales = (np.pad(x, ((0, more), (0, 0))) for x in (values.codes, values.scales))
            values = Quantized(codes, scales, values.columns)
        tensors[tensor.name] = values
    # a ModelConfig of this ffn would be another model of ours; other programs see only numbers
    return PlainModel(replace(config, ffn=config.ffn + more), tensors)


def add_shape(writer: "gguf.GGUFWriter", c: ModelConfig) -> None:
    import gguf

    writer.add_vocab_size(c.vocab_size)
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.dim)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    if c.family == "gpt2":
        writer.add_layer_norm_eps(c.norm_epsilon)
        return
    writer.add_key_length(c.head_size)
    writer.add_value_length(c.head_size)
    writer.add_rope_dimension_count(c.head_size)
    writer.add_rope_freq_base(c.rope_theta)
    if isinstance(c.rope_scaling, Linear | Yarn):
        writer.add_rope_scaling_type(gguf.RopeScalingType(c.rope_scaling.type))
        writer.add_rope_scaling_factor(c.rope_scaling.factor)
    if isinstance(c.rope_scaling, Yarn):
        writer.add_rope_scaling_orig_ctx_len(c.rope_scaling.original_context)
    writer.add_layer_norm_rms_eps(c.norm_epsilon)
    if window := max(c.layer_kind(layer)[0] for layer in range(c.layers)):
        writer.add_sliding_window(window)
    elif architecture_of(c) == "gemma2":
        writer.add_sliding_window(c.context)  # else it is 4,096
    if c.attention_cap is not None and c.logit_cap is not None:
        writer.add_attn_logit_softcapping(c.attention_cap)
        writer.add_final_logit_softcapping(c.logit_cap)


def add_tokenizer(writer: "gguf.GGUFWriter", vocabulary: Vocabulary, rows: int) -> None:
    """The tokenizer as GPT-2's; every text begins with the end token.

    llama.cpp wants a token for each of the `rows` of the embedding: spare ones are called unused.
    """
    from gguf import TokenType

    if vocabulary.foreign is not None:
        raise UserError(
            "--format gguf: the words of this imported tokenizer are not GPT-2's, and GGUF would "
            "have to name them; use --format hf, and the converter of llama.cpp"
        )
    content = tokenizer_json.to_json(vocabulary)["model"]
    special = set(vocabulary.specials.values())
    ids = range(len(vocabulary.tokens))
    spare = range(len(ids), rows)
    kinds = [TokenType.CONTROL if id in special else TokenType.NORMAL for id in ids]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*content["vocab"], *(f"[PAD{id}]" for id in spare)])
    writer.add_token_types(kinds + [TokenType.UNUSED] * len(spare))
    writer.add_token_merges(content["merges"])
    writer.add_bos_token_id(vocabulary.end_id)
    writer.add_eos_token_id(vocabulary.end_id)
    writer.add_pad_token_id(vocabulary.end_id)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_tensors(
    writer: "gguf.GGUFWriter", plain: PlainModel, architecture: str, dtype: str
) -> None:
    """All tensors; vectors and positions stay in float32, as llama.cpp wants them."""
    import gguf

    c = plain.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], c.layers)
    transposed = {row.name for row in tensor_table(c) if row.transposed}
    for name, stored in plain.tensors.items():
        turns = architecture in NEIGHBOURS and name.endswith(("q_proj.weight", "k_proj.weight"))
        if isinstance(stored, Quantized):
            scales = stored.scales.view(np.uint8).reshape(*stored.scales.shape, 2)
            codes = stored.codes.view(np.uint8).reshape(*stored.scales.shape, -1)
            data = np.concatenate([scales, codes], axis=2).reshape(len(stored), -1)
            kind: Any = FORMATS[stored.codes.dtype].upper()
        else:
            exact = stored.ndim == 1 or name == FAMILIES["gpt2"].positions
            kind = "F32" if exact else dtype.upper()
            tensor = np.ascontiguousarray(stored.T) if name in transposed else stored
            data = cast(name, tensor, "f32" if exact else dtype)
        if turns:
            data = neighbours(data, c.head_size)
        kind = gguf.GGMLQuantizationType[kind]
        if kind == gguf.GGMLQuantizationType.BF16:
            data = data.view(np.uint8)
        writer.add_tensor(
            names.get_name(name, try_suffixes=(".weight", ".bias")), data, raw_dtype=kind
        )
    if isinstance(c.rope_scaling, Llama3):  # as what llama.cpp divides frequencies by
        writer.add_tensor("rope_freqs.weight", (1 / rope_scale(c)[0]).astype(np.float32))


def neighbours(rows: np.ndarray, head_size: int) -> np.ndarray:
    """The rows of q or k so that pairs that are turned together are neighbours.

    Ours are rows i and i + head_size / 2 of a head.
    """
    halves = rows.reshape(-1, 2, head_size // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def go_template(name: str, end: str) -> str:
    """`chat_template` in Go's language (text/template), but for the `</s>` in front, which Ollama
    adds, and an `input`, which its messages don't have.

    Behind a message that is no response stand the words in front of one, as with
    `add_generation_prompt`.
    """
    said, heading = split_prompt(name, "{{ $said }}")
    return (
        '{{ $said := "" }}{{ $asked := false }}{{ range .Messages }}'
        '{{ if eq .Role "assistant" }}'
        f"{{{{ if $asked }}}}{said}{{{{ end }}}}{heading}{{{{ .Content }}}}{end}"
        '{{ $said = "" }}{{ $asked = false }}'
        '{{ else if or (eq .Role "system") (eq .Role "developer") (eq .Role "user") }}'
        '{{ if $asked }}{{ $said = printf "%s\\n\\n%s" $said .Content }}'
        "{{ else }}{{ $said = .Content }}{{ end }}{{ $asked = true }}"
        f"{{{{ end }}}}{{{{ end }}}}{{{{ if $asked }}}}{said}{heading}{{{{ end }}}}"
    )


def modelfile(saved: SavedModel, vocabulary: Vocabulary) -> str:
    """The Modelfile for `ollama create`, with Go templates; Ollama adds the `</s>` in front."""
    sampling = Sampling()
    template = "{{ .Prompt }}"
    if saved.template in TEMPLATES:
        template = go_template(saved.template, vocabulary.end_literal)
    lines = [
        f"FROM ./{FILE}",
        f'TEMPLATE """{template}"""',
        f'PARAMETER stop "{vocabulary.end_literal}"',
        f"PARAMETER num_ctx {saved.config.context}",
        f"PARAMETER temperature {sampling.temperature}",
        f"PARAMETER top_k {sampling.top_k}",
        f"PARAMETER top_p {sampling.top_p}",
        "PARAMETER repeat_penalty 1",
    ]
    return "\n".join(lines) + "\n"
