import itertools
import math
import tracemalloc

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.model.buffers import rows_within, training_pass_bytes
from nanoeuler.model.checks.model_gradients import CASES, TINY
from nanoeuler.model.config import PRESETS, ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import (
    forward_flops_per_token,
    parameter_count,
    parameters_by_kind,
    storage_elements,
    tensor_table,
    training_flops_per_token,
)
from nanoeuler.model.tensors import ALIGNMENT
from nanoeuler.model.transformer import Batch, Transformer

CONFIGS = {name: {"preset": name} for name in PRESETS} | {
    name: TINY | fields for name, (fields, _) in CASES.items()
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return ModelConfig.from_dict(CONFIGS[request.param])


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("small", 1_049_216),
        ("medium", 11_010_304),
        ("base", 116_417_280),
        ("large", 267_428_864),
        ("gpt2", 124_439_808),
        ("gpt2-tiny", 875_264),
    ],
)
def test_presets_have_the_parameters_that_the_design_states(preset, parameters):
    assert parameter_count(ModelConfig.from_dict({"preset": preset})) == parameters


def test_a_longer_context_costs_no_parameters():
    assert parameter_count(ModelConfig.from_dict({"preset": "small", "context": 512})) == 1_049_216


def test_kinds_of_parameters_add_up(config):
    assert sum(parameters_by_kind(config).values()) == parameter_count(config)


def test_kinds_of_parameters_of_small():
    expected = {
        "embedding": 512 * 128,
        "attention": 4 * 128 * (128 + 64 + 64 + 128),
        "mlp": 4 * 3 * 128 * 341,
        "norms": 9 * 128,
        "heads": 4 * 512 * 128,
    }
    assert parameters_by_kind(ModelConfig.from_dict({"preset": "small"})) == expected


def test_tensors_have_the_names_of_hugging_face(config):
    names = {each.name for each in tensor_table(config) if ".lora_" not in each.name}
    expected = {f"mtp_heads.{head}.weight" for head in range(1, config.mtp_heads)}
    expected |= names_of_gpt2(config) if config.family == "gpt2" else names_of_llama(config)
    assert names == expected | (set() if config.tied else {"lm_head.weight"})


def names_of_gpt2(config):
    parts = "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"
    modules = [f"h.{layer}.{part}" for layer in range(config.layers) for part in parts] + ["ln_f"]
    names = {f"transformer.{module}.{kind}" for module in modules for kind in ("weight", "bias")}
    return names | {"transformer.wte.weight", "transformer.wpe.weight"}


def gated(config):
    return ("up",) if config.activation == "relu2" else ("gate", "up")


def names_of_llama(config):
    layer = [
        "input_layernorm",
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"self_attn.{part}_norm" for part in "qk" * (config.qk_norm == "weighted")),  # of Qwen3
        "post_attention_layernorm",
        *(f"mlp.{part}_proj" for part in (*gated(config), "down")),
        *(f"{part}_feedforward_layernorm" for part in ("pre", "post") * config.post_norms),  # Gemma
    ]
    biases = [f"self_attn.{part}_proj.bias" for part in "qkv" * config.qkv_bias]  # of Qwen2
    expected = {
        f"model.layers.{index}.{part}"
        for index in range(config.layers)
        for part in (*(f"{part}.weight" for part in layer), *biases)
    }
    return expected | {"model.embed_tokens.weight", "model.norm.weight"}


def test_tensors_start_on_blocks_and_do_not_overlap(config):
    table = tensor_table(config)
    assert all(tensor.offset % ALIGNMENT == 0 for tensor in table)
    assert all(first.stop <= second.offset for first, second in itertools.pairwise(table))
    assert table[0].offset == 0
    assert storage_elements(table) >= table[-1].stop
    assert storage_elements(table) % ALIGNMENT == 0


def test_members_of_a_packed_product_are_adjacent(config):
    rows = {tensor.name: tensor for tensor in tensor_table(config)}
    first = family_of(config).embedding if config.tied else "lm_head.weight"
    packs = [[first, *(f"mtp_heads.{head}.weight" for head in range(1, config.mtp_heads))]]
    for layer in range(config.layers if config.family == "llama" else 0):
        packs.append([f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"])
        packs.append([f"model.layers.{layer}.mlp.{part}_proj.weight" for part in gated(config)])
    for before, after in (pair for pack in packs for pair in itertools.pairwise(pack)):
        assert rows[before].stop == rows[after].offset
        assert rows[before].storage_shape[1] == rows[after].storage_shape[1]


def test_storage_pads_but_never_cuts(config):
    for tensor in tensor_table(config):
        assert all(
            stored >= size for stored, size in zip(tensor.storage_shape, tensor.shape, strict=True)
        )


def test_matrices_decay_and_norms_do_not(config):
    assert all(tensor.decay == (len(tensor.shape) == 2) for tensor in tensor_table(config))


def test_residual_outputs_start_narrower():
    config = ModelConfig.from_dict({"preset": "medium"})
    spreads = {tensor.name: tensor.initial_std for tensor in tensor_table(config)}
    for name, spread in spreads.items():
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert (
            spread is None
            if "norm" in name
            else spread == pytest.approx(0.02 / math.sqrt(16) if residual else 0.02)
        )


# ---- what it costs


class CountingBackend(ReferenceBackend):
    """Adds up the operations of the forward products that are really carried out."""

    def __init__(self):
        super().__init__(np.float32)
        self.operations = 0

    def linear(self, x_NI, weight_OI, out_NO):
        self.operations += 2 * x_NI.shape[0] * weight_OI.size
        super().linear(x_NI, weight_OI, out_NO)


def test_forward_flops_are_those_of_the_products_and_of_causal_attention():
    # base has no padding in any product, so what is carried out is what is counted
    config = ModelConfig.from_dict({"preset": "base", "layers": 2})
    backend, T = CountingBackend(), 8
    model = Transformer(config, initial_parameters(config, 1), backend)
    ids = np.zeros((1, T), np.int32)
    model.heads.logits(model.weights.heads, model.forward(Batch(ids, ids, ids), training=True))
    scores_and_mixing = sum(
        2 * 2 * config.layers * config.heads * config.head_size * (query + 1) for query in range(T)
    )
    assert forward_flops_per_token(config, T) * T == backend.operations + scores_and_mixing
    assert training_flops_per_token(config, T) == 3 * forward_flops_per_token(config, T)


@pytest.mark.parametrize("preset", ["small", "medium"])
def test_the_estimate_of_activations_is_what_a_step_takes(preset):
    """Counted by the allocator: NumPy tells tracemalloc of every array."""
    config, backend = ModelConfig.from_dict({"preset": preset}), ReferenceBackend()
    model = Transformer(config, initial_parameters(config, 1), backend)
    tracemalloc.start()
    try:
        model.buffers(2, 64, training=True)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    targets = 2 * 64 * 4 * (3 + 4 * config.mtp_heads)  # inputs, and two numbers for each target
    estimate = training_pass_bytes(config, backend, 2, 64) - targets
    assert taken == pytest.approx(
        estimate - 2 * backend.workspace_bytes(config.heads, 64), rel=0.01
    )


def test_rows_within_a_budget_are_the_most_that_fit():
    config, backend = ModelConfig.from_dict({"preset": "small"}), ReferenceBackend()
    for rows in (1, 2, 7, 8):
        budget = training_pass_bytes(config, backend, rows, 64)
        assert rows_within(config, backend, 64, budget) == rows
        assert rows_within(config, backend, 64, budget - 1) == rows - 1


def test_recomputation_shares_the_gate_and_up_products():
    config, backend = ModelConfig.from_dict({"preset": "small"}), ReferenceBackend()
    kept = training_pass_bytes(config, backend, 2, 64)
    shared = training_pass_bytes(config, backend, 2, 64, recompute=True)
    assert kept - shared == 3 * 2 * 64 * 2 * 344 * 4  # three of the four layers' products


# ---- bad fields


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preset": "tiny"}, "model.preset is 'tiny'; there are small, medium"),
        ({"preset": "small", "width": 3}, "model.width is no field"),
        ({"dim": 64}, "lacks vocab_size, layers"),
        (
            {"preset": "small", "heads": 3},
            "model.heads is 3, which does not divide model.dim = 128",
        ),
        (
            {"preset": "small", "kv_heads": 3},
            "model.kv_heads is 3, which does not divide model.heads = 4",
        ),
        ({"preset": "small", "head_size": 7}, "model.head_size is 7"),
        ({"preset": "small", "head_size": -2}, "model.head_size is -2"),
        ({"preset": "small", "layers": 0}, "model.layers is 0: it must be at least 1"),
        ({"preset": "small", "layers": "4"}, "model.layers is '4': it must be a whole number"),
        ({"preset": "small", "layers": 4.5}, "model.layers is 4.5: it must be a whole number"),
        ({"preset": "small", "tied": 1}, "model.tied is 1: it must be true or false"),
        (
            {"preset": "small", "rope_theta": "1e4"},
            "model.rope_theta is '1e4': it must be a number",
        ),
        ({"preset": "small", "rope_theta": math.nan}, "model.rope_theta is nan"),
        ({"preset": "small", "step_size": 0}, "model.step_size must be above 0"),
        ({"preset": "small", "mtp_weights": [1, 1]}, "one weight ≥ 0 for each of the 4 heads"),
        (
            {"preset": "small", "mtp_weights": "equal"},
            "model.mtp_weights is 'equal': it must be a list of numbers",
        ),
        ({"preset": "small", "mtp_weights": [0, 1, 1, 1]}, "head 0's above 0"),
    ],
)
def test_a_bad_field_gets_a_sentence_that_names_it(fields, words):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict(fields)
    assert words in str(caught.value)


def test_a_config_survives_its_dictionary(config):
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_fields_that_are_null_take_the_preset():
    assert ModelConfig.from_dict({"preset": "small", "dim": None}) == ModelConfig.from_dict(
        {"preset": "small"}
    )


# ---- fresh parameters


@pytest.mark.parametrize("name", ["small", *CASES])
def test_fresh_parameters_depend_on_the_seed_alone(name):
    config = ModelConfig.from_dict(CONFIGS[name])
    first = initial_parameters(config, 7)
    assert np.array_equal(first, initial_parameters(config, 7))
    assert not np.array_equal(first, initial_parameters(config, 8))
    assert first.dtype == np.float32


def test_fresh_parameters_have_the_spread_of_the_table_and_zero_padding():
    config = ModelConfig.from_dict({"preset": "small"})
    parameters = initial_parameters(config, 1)
    padding = np.ones(parameters.shape, bool)
    for tensor in tensor_table(config):
        stored = parameters[tensor.offset : tensor.stop].reshape(tensor.storage_shape)
        inside = tuple(slice(size) for size in tensor.shape)
        values = stored[inside]
        padding[tensor.offset : tensor.stop].reshape(tensor.storage_shape)[inside] = False
        if tensor.initial_std is None:
            assert (values == 1).all()
        else:
            # five standard errors of a standard deviation and of a mean
            assert values.std() == pytest.approx(
                tensor.initial_std, rel=5 / math.sqrt(2 * values.size)
            )
            assert abs(values.mean()) < 5 * tensor.initial_std / math.sqrt(values.size)
    assert padding.any()
    assert (parameters[padding] == 0).all()


def test_tensors_of_equal_shape_start_different():
    config = ModelConfig.from_dict({"preset": "small"})
    parameters = initial_parameters(config, 1)
    rows = [
        parameters[tensor.offset : tensor.offset + 64].tobytes()
        for tensor in tensor_table(config)
        if tensor.initial_std is not None
    ]
    assert len(set(rows)) == len(rows)
