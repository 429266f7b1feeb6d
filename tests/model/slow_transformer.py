"""The model a second time, straight from the papers' formulas.

It computes with Python numbers, one document, one head and one token at a time. It shares no code
with the package, and has no batches, no masks (a document is a sequence of its own), no packed
products, no cache and no buffers: a mistake in any of those shows as a difference.
"""

import math

Vector = list[float]
Matrix = list[Vector]


def slow_logits(config, tensors, ids) -> list[list[Vector]]:
    """Logits of every head behind every token of one document: [token][head][vocabulary entry].

    `tensors` maps the names of Hugging Face's Llama (and mtp_heads.k.weight) to nested lists;
    matrices are (out, in).
    """
    c = config
    stream = [
        [c.embedding_scale * value for value in tensors["model.embed_tokens.weight"][id]]
        for id in ids
    ]
    gate = gelu if c.activation == "geglu" else lambda x: x / (1 + math.exp(-x))
    behind_attention, before_mlp = None, "post_attention_layernorm"
    if c.post_norms:
        behind_attention, before_mlp = before_mlp, "pre_feedforward_layernorm"
    for layer in range(c.layers):
        weights = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): value
            for name, value in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        normed = [rms_norm(x, weights["input_layernorm"], c.norm_epsilon) for x in stream]
        attended = slow_attention(c, layer, weights, normed)
        if behind_attention:
            attended = [rms_norm(x, weights[behind_attention], c.norm_epsilon) for x in attended]
        stream = [euler_step(x, c.step_size, f) for x, f in zip(stream, attended, strict=True)]
        transformed = [
            gated_mlp(weights, gate, rms_norm(x, weights[before_mlp], c.norm_epsilon))
            for x in stream
        ]
        if c.post_norms:
            weight = weights["post_feedforward_layernorm"]
            transformed = [rms_norm(x, weight, c.norm_epsilon) for x in transformed]
        stream = [euler_step(x, c.step_size, f) for x, f in zip(stream, transformed, strict=True)]
    first = tensors["model.embed_tokens.weight"] if c.tied else tensors["lm_head.weight"]
    heads = [first, *(tensors[f"mtp_heads.{head}.weight"] for head in range(1, c.mtp_heads))]
    normed = [rms_norm(x, tensors["model.norm.weight"], c.norm_epsilon) for x in stream]
    return [
        [[cap(c.logit_cap, logit) for logit in apply(head, x)] for head in heads] for x in normed
    ]


def slow_gpt2_logits(config, tensors, ids) -> list[list[Vector]]:
    """`slow_logits` of a GPT-2, whose matrices are (out, in) as well."""
    c = config
    rows = zip(ids, tensors["transformer.wpe.weight"], strict=False)
    stream = [add(tensors["transformer.wte.weight"][id], position) for id, position in rows]
    for layer in range(c.layers):
        prefix = f"transformer.h.{layer}."
        w = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
        normed = [norm(w, "ln_1", x, c.norm_epsilon) for x in stream]
        packed = [biased(w, "attn.c_attn", x) for x in normed]
        attended = [biased(w, "attn.c_proj", x) for x in attend_by_head(c, packed)]
        stream = [euler_step(x, c.step_size, f) for x, f in zip(stream, attended, strict=True)]
        normed = [norm(w, "ln_2", x, c.norm_epsilon) for x in stream]
        inner = [[gelu(value) for value in biased(w, "mlp.c_fc", x)] for x in normed]
        outputs = [biased(w, "mlp.c_proj", x) for x in inner]
        stream = [euler_step(x, c.step_size, f) for x, f in zip(stream, outputs, strict=True)]
    first = tensors["transformer.wte.weight"] if c.tied else tensors["lm_head.weight"]
    heads = [first, *(tensors[f"mtp_heads.{head}.weight"] for head in range(1, c.mtp_heads))]
    last = [norm(tensors, "transformer.ln_f", x, c.norm_epsilon) for x in stream]
    return [[apply(head, x) for head in heads] for x in last]


def attend_by_head(c, packed: list[Vector]) -> list[Vector]:
    """Causal attention of queries, keys and values that stand one after another."""
    outputs = []
    for position, row in enumerate(packed):
        joined: Vector = []
        for start in range(0, c.dim, c.head_size):
            query = row[start : start + c.head_size]
            keys, values = (
                [each[at : at + c.head_size] for each in packed[: position + 1]]
                for at in (c.dim + start, 2 * c.dim + start)
            )
            scores = [math.exp(dot(query, key) / math.sqrt(c.head_size)) for key in keys]
            joined += [
                sum(score * value[i] for score, value in zip(scores, values, strict=True))
                / sum(scores)
                for i in range(c.head_size)
            ]
        outputs.append(joined)
    return outputs


def norm(weights, name: str, x: Vector, epsilon: float) -> Vector:
    """LayerNorm."""
    mean = sum(x) / len(x)
    root = math.sqrt(sum((value - mean) ** 2 for value in x) / len(x) + epsilon)
    parts = zip(x, weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
    return [weight * (value - mean) / root + bias for value, weight, bias in parts]


def gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def biased(weights, name: str, x: Vector) -> Vector:
    return add(apply(weights[f"{name}.weight"], x), weights[f"{name}.bias"])


def add(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def slow_attention(c, layer: int, weights, xs: list[Vector]) -> list[Vector]:
    """Causal grouped-query attention: query head h reads key/value head h // (heads / kv_heads)."""
    size = c.head_size
    rotates = not c.rope_layers or c.rope_layers[layer % len(c.rope_layers)]
    window = c.windows[layer % len(c.windows)] if c.windows else 0

    def heads(part: str, position: int, x: Vector) -> list[Vector]:
        product = apply(weights[f"self_attn.{part}_proj"], x)
        if c.qkv_bias:
            product = add(product, weights[f"self_attn.{part}_proj.bias"])
        parts = split(product, size)
        if part == "v":
            return parts
        if c.qk_norm != "none":
            weight = weights.get(f"self_attn.{part}_norm", [1.0] * size)
            parts = [rms_norm(each, weight, c.norm_epsilon) for each in parts]
        plain = window and c.window_rope_theta
        turned = rotate_plainly if plain else rotate
        return [turned(c, each, position) if rotates else each for each in parts]

    queries, keys, values = (
        [heads(part, position, x) for position, x in enumerate(xs)] for part in "qkv"
    )
    outputs = []
    for position in range(len(xs)):
        joined: Vector = []
        seen = range(max(0, position + 1 - window) if window else 0, position + 1)
        for head in range(c.heads):
            group = head // (c.heads // c.kv_heads)
            root = math.sqrt(c.query_scalar or size)
            products = [dot(queries[position][head], keys[other][group]) for other in seen]
            scores = [cap(c.attention_cap, product / root) for product in products]
            exponentials = [math.exp(score) for score in scores]
            shares = [value / sum(exponentials) for value in exponentials]
            joined += [
                sum(
                    share * values[other][group][i]
                    for other, share in zip(seen, shares, strict=True)
                )
                for i in range(size)
            ]
        outputs.append(apply(weights["self_attn.o_proj"], joined))
    return outputs


def cap(largest: float | None, x: float) -> float:
    return largest * math.tanh(x / largest) if largest else x


def gated_mlp(weights, function, x: Vector) -> Vector:
    gate, up = apply(weights["mlp.gate_proj"], x), apply(weights["mlp.up_proj"], x)
    hidden = [function(g) * u for g, u in zip(gate, up, strict=True)]
    return apply(weights["mlp.down_proj"], hidden)


def rms_norm(x: Vector, weight: Vector, epsilon: float) -> Vector:
    root = math.sqrt(sum(value * value for value in x) / len(x) + epsilon)
    return [w * value / root for w, value in zip(weight, x, strict=True)]


def rotate(c, x: Vector, position: int) -> Vector:
    """Rotary position embedding.

    Element i of the first half and element i of the second are a point in the plane, which is
    rotated by position · θ^(−2i/E), or by less where positions are scaled.
    """
    grown = getattr(c.rope_scaling, "attention_factor", 1)
    return turn(x, [position * frequency(c, i) for i in range(len(x) // 2)], grown)


def rotate_plainly(c, x: Vector, position: int) -> Vector:
    """By the base of layers with windows."""
    theta, pairs = c.window_rope_theta, range(len(x) // 2)
    return turn(x, [position * theta ** (-2 * i / len(x)) for i in pairs], 1)


def turn(x: Vector, angles: list[float], grown: float) -> Vector:
    half = len(x) // 2
    rotated = [0.0] * len(x)
    for i, angle in enumerate(angles):
        rotated[i] = grown * (x[i] * math.cos(angle) - x[i + half] * math.sin(angle))
        rotated[i + half] = grown * (x[i] * math.sin(angle) + x[i + half] * math.cos(angle))
    return rotated


def frequency(c, i: int) -> float:
    """Of pair i, in radians per position."""
    plain, scaling = c.rope_theta ** (-2 * i / c.head_size), c.rope_scaling
    if scaling is None:
        return plain
    slow = plain / scaling.factor
    if scaling.type == "linear":
        return slow
    if scaling.type == "llama3":
        wavelength = 2 * math.pi / plain
        if wavelength < scaling.original_context / scaling.high_freq_factor:
            return plain
        if wavelength > scaling.original_context / scaling.low_freq_factor:
            return slow
        turns, span = scaling.original_context / wavelength, scaling.high_freq_factor
        share = (turns - scaling.low_freq_factor) / (span - scaling.low_freq_factor)
        return (1 - share) * slow + share * plain
    ends = []
    for turns in (scaling.beta_fast, scaling.beta_slow):
        # the pair i with original_context · θ^(−2i/E) = 2π · turns
        ratio = scaling.original_context / (2 * math.pi * turns)
        ends.append(c.head_size / 2 * math.log(ratio) / math.log(c.rope_theta))
    first, last = ends
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, c.head_size - 1)
    share = 1 - min(max((i - first) / (last - first), 0), 1)
    return (1 - share) * slow + share * plain


def euler_step(x: Vector, h: float, f: Vector) -> Vector:
    return [a + h * b for a, b in zip(x, f, strict=True)]


def apply(matrix: Matrix, x: Vector) -> Vector:
    return [dot(row, x) for row in matrix]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def split(x: Vector, size: int) -> list[Vector]:
    return [x[start : start + size] for start in range(0, len(x), size)]
