"""The attention kernels against the float64 reference, on the device; and the resources that their
tiles take, without one."""

import numpy as np
import pytest
from test_kernel_sources import compile_source, resources

from nanoeuler.backend.cuda.attention import (
    HEAD_SIZES,
    SHARED_LIMIT,
    UNITS,
    Attention,
    prompt_tiles,
    source,
    tiles_for,
)
from nanoeuler.backend.cuda.decoding_sizes import BLOCK_SHARED
from nanoeuler.backend.cuda.device import capability
from nanoeuler.backend.cuda.kernels import Kernels
from nanoeuler.backend.records import AttentionArrays
from nanoeuler.backend.reference import ReferenceBackend

# ‖error‖ / ‖reference‖. float32: some roundings of 6e-8 each. TF32 keeps 10 bits of an operand,
# bf16 7, and rounds its results to 8: a rounding's relative size is 2⁻¹¹/√3 = 2.8e-4 and
# 2⁻⁹/√3 = 1.1e-3 by norm. Operands, probabilities, their gradients and results see one each.
BOUNDS = {"ffma": 1e-6, "tf32": 1e-3, "bf16": 4e-3, "wgmma": 4e-3, "prompts": 4e-3}
PRECISIONS = {"ffma": "fp32", "tf32": "tf32", "bf16": "bf16", "wgmma": "bf16", "prompts": "bf16"}
FORMS = [*UNITS, "prompts"]  # the last: wgmma in the tiles of prompts

SHAPES = [  # B, T, query heads, key/value heads, head size, documents per row
    (2, 100, 4, 4, 32, 1),
    (2, 77, 6, 2, 64, 4),
    (1, 130, 8, 2, 128, 3),
    (2, 200, 8, 1, 64, 6),
    (2, 64, 4, 4, 64, 1),
    (1, 513, 3, 1, 64, 5),
    (2, 257, 12, 4, 64, 40),
    (1, 9, 8, 8, 128, 2),
    (1, 1, 3, 1, 64, 1),
]
CACHED = [  # B, new tokens, query heads, key/value heads, head size, cache slots, tokens in it
    (3, 1, 12, 4, 64, 700, [0, 333, 699]),
    (2, 4, 8, 1, 128, 100, [50, 96]),
    (2, 20, 6, 2, 64, 300, [17, 280]),
    (2, 65, 4, 2, 32, 128, [63, 0]),
]


def relative_error(result, expected):
    return np.linalg.norm(np.asarray(result, np.float64) - expected) / np.linalg.norm(expected)


def random_inputs(random, form, shape):
    import ml_dtypes

    return (
        random.standard_normal(shape)
        .astype(np.float32)
        .astype(np.float32 if form in ("ffma", "tf32") else ml_dtypes.bfloat16)
    )


def document_starts(random, B, T, documents):
    starts = np.zeros((B, T), np.int32)
    for row in starts:
        for cut in (
            np.sort(random.choice(np.arange(1, T), documents - 1, replace=False))
            if documents > 1
            else []
        ):
            row[cut:] = cut
    return starts


@pytest.fixture
def kernels():
    import cupy

    return Kernels(cupy.cuda.Stream(non_blocking=True), capability(0))


@pytest.fixture
def random():
    return np.random.default_rng(5)


def attention_of(kernels, form, heads, kv_heads, head_size):
    """That of a form, or where the device does not have it, of mma.sync."""
    shape = heads, kv_heads, head_size, PRECISIONS[form]
    if form not in ("wgmma", "prompts"):
        return Attention(kernels, *shape, form)
    if not kernels.hopper:
        return Attention(kernels, *shape, "bf16")
    tiles = prompt_tiles(head_size) if form == "prompts" else None
    return Attention(kernels, *shape, "wgmma", tiles)


class Case:
    """Random inputs in one packed buffer, as the model has them, and the reference's results."""

    def __init__(
        self, kernels, random, form, B, T, heads, kv_heads, head_size, documents, change=None
    ):
        """`change` is given queries, keys and values to alter."""
        import cupy

        shape = heads, kv_heads, head_size
        self.attention = attention_of(kernels, form, *shape)
        packed = random_inputs(random, form, (B, T, heads + 2 * kv_heads, head_size))
        dout = random_inputs(random, form, (B, T, heads, head_size))
        if change:
            change(*self.split(packed, heads, kv_heads))
        starts, offset = document_starts(random, B, T, documents), np.zeros(B, np.int32)
        query, key, value = self.split(packed.astype(np.float64), heads, kv_heads)
        self.out, self.lse = np.empty(dout.shape), np.empty((B, heads, T))
        reference, self.gradient = ReferenceBackend(np.float64), np.empty(packed.shape)
        saved = AttentionArrays(query, key, value, self.out)
        reference.attention(saved, starts, offset, self.lse)
        gradients = AttentionArrays(
            *self.split(self.gradient, heads, kv_heads), dout.astype(np.float64)
        )
        reference.attention_backward(saved, gradients, starts, self.lse)

        self.inputs = self.split(cupy.asarray(packed), heads, kv_heads)
        self.starts, self.offset = cupy.asarray(starts), cupy.asarray(offset)
        self.device_out = cupy.full(dout.shape, np.nan, dout.dtype)
        self.device_lse = cupy.full(self.lse.shape, np.nan, np.float32)
        self.device_gradient = cupy.full(packed.shape, np.nan, packed.dtype)
        self.saved = AttentionArrays(*self.inputs, self.device_out)
        self.gradients = AttentionArrays(
            *self.split(self.device_gradient, heads, kv_heads), cupy.asarray(dout)
        )
        self.workspace = cupy.full(self.attention.workspace_bytes(B, T) // 4, np.nan, np.float32)
        cupy.cuda.Device().synchronize()

    @staticmethod
    def split(packed, heads, kv_heads):
        return (
            packed[:, :, :heads],
            packed[:, :, heads : heads + kv_heads],
            packed[:, :, heads + kv_heads :],
        )

    def forward(self):
        self.attention.forward(self.saved, self.starts, self.offset, self.device_lse)

    def backward(self):
        self.attention.backward(
            self.saved, self.gradients, self.starts, self.device_lse, self.workspace
        )

    def errors(self):
        heads, kv_heads = self.attention.heads, self.attention.kv_heads
        results = self.split(self.device_gradient.get(), heads, kv_heads)
        pairs = [
            (self.device_out.get(), self.out),
            (self.device_lse.get(), self.lse),
            *zip(results, self.split(self.gradient, heads, kv_heads), strict=True),
        ]
        return {
            name: relative_error(*pair)
            for name, pair in zip(("out", "lse", "dquery", "dkey", "dvalue"), pairs, strict=True)
            if np.any(pair[1])
        }


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward_agree_with_the_reference(kernels, random, form, shape):
    case = Case(kernels, random, form, *shape)
    case.forward()
    case.backward()
    kernels.stream.synchronize()
    for name, error in case.errors().items():
        # with a single key the gradients of query and key are zero: the reference's are rounding
        assert error < BOUNDS[form] or (shape[1] == 1 and name in ("dquery", "dkey")), name


@pytest.mark.gpu
def test_float32_gradients_of_queries_hold_where_keys_and_values_have_much_in_common(
    kernels, random
):
    def share(query, key, value):
        query[..., 32:] = 0  # which is not to show in the scores
        key[..., 32:] += 10
        value += 3

    case = Case(kernels, random, "ffma", 2, 257, 3, 1, 64, 1, share)
    case.forward()
    case.backward()
    kernels.stream.synchronize()
    errors = case.errors()
    # 2.7e-5 where delta is dout · out alone: its error counts as often as the keys' common part
    # outweighs the rest
    assert errors.pop("dquery") < 8e-6
    assert max(errors.values()) < BOUNDS["ffma"]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", CACHED)
@pytest.mark.parametrize("form", FORMS)
def test_new_tokens_behind_a_cache_agree_with_the_reference_and_free_places_are_not_read(
    kernels, random, form, shape
):
    import cupy

    B, T, heads, kv_heads, head_size, places, lengths = shape
    query = random_inputs(random, form, (B, T, heads, head_size))
    cache = random_inputs(random, form, (B, places, 2 * kv_heads, head_size))
    for row, length in zip(cache, lengths, strict=True):
        row[length + T :] = np.nan
    starts = np.repeat(random.integers(0, np.array(lengths)[:, None] + 1), T, axis=1).astype(
        np.int32
    )
    offset = np.array(lengths, np.int32)
    out, lse = np.empty(query.shape), np.empty((B, heads, T))
    exact = query.astype(np.float64), *np.split(cache.astype(np.float64), 2, axis=2)
    ReferenceBackend(np.float64).attention(AttentionArrays(*exact, out), starts, offset, lse)

    attention = attention_of(kernels, form, heads, kv_heads, head_size)
    device_cache = cupy.asarray(cache)
    device_out = cupy.full(out.shape, np.nan, query.dtype)
    device_lse = cupy.full(lse.shape, np.nan, np.float32)
    arrays = cupy.asarray(query), device_cache[:, :, :kv_heads], device_cache[:, :, kv_heads:]
    heads, rows = AttentionArrays(*arrays, device_out), (cupy.asarray(starts), cupy.asarray(offset))
    cupy.cuda.Device().synchronize()
    attention.forward(heads, *rows, device_lse)
    kernels.stream.synchronize()
    assert relative_error(device_out.get(), out) < BOUNDS[form]
    assert relative_error(device_lse.get(), lse) < BOUNDS[form]


@pytest.mark.gpu
@pytest.mark.parametrize("T", [3, 40, 100])
@pytest.mark.parametrize("form", FORMS)
def test_the_padding_of_short_rows_does_not_read_beyond_the_cache(kernels, random, form, T):
    import cupy

    places, lengths = 100, [100 - T, 99]  # of the second row only the first new token counts
    query = random_inputs(random, form, (2, T, 4, 64))
    cache = random_inputs(random, form, (2, places + T, 4, 64))
    cache[:, places:] = np.nan
    starts, offset = np.zeros((2, T), np.int32), np.array(lengths, np.int32)
    out, lse = np.empty(query.shape), np.empty((2, 4, T))
    exact = query.astype(np.float64), *np.split(cache[:, :places].astype(np.float64), 2, axis=2)
    ReferenceBackend(np.float64).attention(AttentionArrays(*exact, out), starts, offset, lse)

    attention = attention_of(kernels, form, 4, 2, 64)
    device_cache = cupy.asarray(cache)[:, :places]
    device_out = cupy.empty(out.shape, query.dtype)
    device_lse = cupy.empty(lse.shape, np.float32)
    arrays = cupy.asarray(query), device_cache[:, :, :2], device_cache[:, :, 2:]
    heads, rows = AttentionArrays(*arrays, device_out), (cupy.asarray(starts), cupy.asarray(offset))
    cupy.cuda.Device().synchronize()
    attention.forward(heads, *rows, device_lse)
    kernels.stream.synchronize()
    found = device_out.get().astype(np.float64)
    assert np.isfinite(found).all()
    assert relative_error(found[0], out[0]) < BOUNDS[form]
    assert relative_error(found[1, :1], out[1, :1]) < BOUNDS[form]


@pytest.mark.gpu
@pytest.mark.parametrize("form", UNITS)
def test_two_runs_give_the_same_bits_in_a_graph_or_out_of_it(kernels, random, form):
    case = Case(kernels, random, form, 2, 257, 6, 2, 64, 7)
    case.forward()
    case.backward()
    kernels.stream.synchronize()
    first = case.device_out.get().tobytes(), case.device_gradient.get().tobytes()
    stream = kernels.stream
    with stream:
        stream.begin_capture()
        case.forward()
        case.backward()
        graph = stream.end_capture()
    for _ in range(3):
        case.device_gradient.fill(0)
        case.device_out.fill(0)
        case.workspace.device.synchronize()
        graph.launch(stream)
        kernels.stream.synchronize()
        assert (case.device_out.get().tobytes(), case.device_gradient.get().tobytes()) == first


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("unit", UNITS)
def test_a_block_fits_the_shared_memory_of_the_cards_that_run_it(unit, head_size, ratio):
    tiles = tiles_for(unit, head_size, ratio)
    for size in tiles.shared_bytes(head_size * (4 if unit in ("ffma", "tf32") else 2)).values():
        assert size <= SHARED_LIMIT
    assert ratio % tiles.heads == 0
    assert ratio % tiles.gradient_heads == 0


@pytest.mark.parametrize("head_size", [64, 128])  # 32 asks for less of everything
@pytest.mark.parametrize(
    ("unit", "architecture", "fp8"),
    [
        *((unit, "sm_90a" if unit == "wgmma" else "sm_80", False) for unit in UNITS),
        ("wgmma", "sm_90a", True),
    ],
)
def test_every_form_compiles_without_spilling_registers(unit, architecture, fp8, head_size):
    kernels = resources(compile_source(source(unit, head_size, 3, fp8=fp8), architecture))
    assert kernels.keys() == {
        "attention_forward",
        "attention_dquery",
        "attention_dkey",
        "attention_decode",
    }
    for name, (registers, spilled, _) in kernels.items():
        assert registers <= 255
        assert spilled == 0, name


@pytest.mark.parametrize("head_size", [64, 128])
def test_attention_of_prompts_compiles_without_spilling_registers(head_size):
    tiles = prompt_tiles(head_size)
    assert tiles.shared_bytes(2 * head_size)["attention_forward"] <= BLOCK_SHARED
    for name, (_, spilled, _) in resources(
        compile_source(source("wgmma", head_size, 3, tiles), "sm_90a")
    ).items():
        assert spilled == 0, name
