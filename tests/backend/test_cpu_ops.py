"""Every op of the CPU engine against the float64 reference on the same inputs.

Sizes include odd ones, and each op runs with one thread and with three. The error of an array is
‖a − b‖ / ‖b‖. 1e-6 is about ten roundings of float32 in a row; a wrong term shows at 1e-2.
"""

import numpy as np
import pytest

from nanoeuler.backend.cpu import blas, engine
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.cpu.runtime import Transposes
from nanoeuler.backend.records import (
    AdamWConstants,
    AttentionArrays,
    EulerStep,
    FlatState,
    LayerNorm,
    LogitRows,
    ModelWeights,
    NormGradients,
    ParameterRun,
    RmsNorm,
    SwigluWeights,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.engine_ops import check_device_ops
from nanoeuler.system import provenance

TOLERANCE = 1e-6
REFERENCE = ReferenceBackend(np.float64)


@pytest.fixture(params=[1, 3])
def ops(request, monkeypatch):
    """One thread, then three threads that share even the smallest op."""
    monkeypatch.setattr(engine, "LEAST_ELEMENTS", 100)
    monkeypatch.setattr(engine, "LEAST_PRODUCT", 1000)
    return CpuBackend(request.param)


@pytest.fixture(params=["mkl", "numpy"])
def library(request, monkeypatch):
    """MKL where it is installed, then NumPy's own BLAS."""
    if request.param == "numpy":
        monkeypatch.setattr(blas, "installed_mkl", lambda: None)
    elif blas.installed_mkl() is None:
        pytest.skip("MKL is not installed, or this processor is not Intel's")


@pytest.fixture
def random():
    return np.random.default_rng(1)


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def assert_close(found, expected, tolerance=TOLERANCE):
    norm = np.linalg.norm(expected)
    if norm == 0:
        assert not np.any(found)
    else:
        assert np.linalg.norm(found - expected) <= tolerance * norm


def both(ops, call, *arrays, outputs):
    """call(backend, *arrays) on the engine's float32 arrays, and on float64 copies.

    The arrays at the indices `outputs` have to agree.
    """
    copies = [
        array.astype(np.float64) if array.dtype == np.float32 else array.copy() for array in arrays
    ]
    call(ops, *arrays)
    call(REFERENCE, *copies)
    for index in outputs:
        assert_close(arrays[index], copies[index])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products(ops, random, rows, scale, accumulate):
    shapes = (rows, 24), (136, 24), (rows, 136), (rows, 24), (136, 24)
    arrays = [normal(random, *shape) for shape in shapes]

    def call(backend, x, weight, out, dx, dweight):
        backend.linear(x, weight, out)
        backend.linear_backward_input(out, weight, dx, scale)
        backend.linear_backward_weight(out, x, dweight, accumulate=accumulate, scale=scale)

    both(ops, call, *arrays, outputs=(2, 3, 4))


def test_products_without_a_blas_to_call(random, monkeypatch):
    monkeypatch.setattr(blas, "installed_mkl", lambda: None)
    monkeypatch.setattr(blas, "NAMES", {})
    ops = CpuBackend(1)
    assert ops.blas.name == "numpy.matmul"
    test_products(ops, random, 7, 0.5, True)
    test_products(ops, random, 7, 0.5, False)
    test_products(ops, random, 7, 1.0, True)


@pytest.mark.parametrize(
    ("processor", "found"), [("Intel(R) Xeon(R) Gold", True), ("AMD EPYC 9454", False)]
)
def test_mkl_multiplies_on_processors_by_intel(tmp_path, monkeypatch, processor, found):
    """Its wheels put the library into the folder `lib` of the environment."""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    package = packages / "mkl-2030.1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mkl\nVersion: 2030.1\n")
    (package / "RECORD").write_text("../../libmkl_core.so.3,,\n../../libmkl_rt.so.3,,\n")
    (tmp_path / "lib" / "libmkl_rt.so.3").touch()
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr(provenance, "cpu_name", lambda: processor)
    if not found:
        assert blas.installed_mkl() is None
        return
    name, path = blas.installed_mkl()
    assert name == "mkl 2030.1"
    assert (tmp_path / "lib" / "libmkl_rt.so.3").samefile(path)


def test_the_blas_of_numpy_is_named(monkeypatch):
    monkeypatch.setattr(blas, "installed_mkl", lambda: None)
    built_with = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert blas.Blas().label.startswith(f"{built_with['name']} {built_with['version']}")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_a_product_with_a_weight_that_is_stored_transposed(ops, random, rows):
    def call(backend, x, transpose, out):
        backend.linear(x, transpose.T, out)

    shapes = (rows, 24), (24, 136), (rows, 136)
    both(ops, call, *(normal(random, *shape) for shape in shapes), outputs=(2,))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("unpacked", [0, blas.UNPACKED])
@pytest.mark.parametrize("shape", [(300, 520, 150), (7, 3, 40), (33, 1, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_cut_into_small_ones_is_the_same_product(random, unpacked, shape, transposed):
    m, k, n = shape
    a = normal(random, k, m).T if transposed else normal(random, m, k)
    b = normal(random, k, n)
    c = normal(random, m, n)
    numpy_blas = blas.Blas()  # a name, because it has to outlive the calls
    address, wide, _ = numpy_blas.sgemm
    for beta in (0.0, 1.0):
        expected = 0.5 * a.astype(np.float64) @ b + beta * c
        sgemm = address, wide, unpacked
        blas.product(sgemm, a, b, c, np.float32(0.5), np.float32(beta))
        assert_close(c, expected)


@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (50, 37)])
def test_transposes_follow_the_weights(random, shape):
    matrix = normal(random, *shape)
    block = SwigluWeights(matrix[0], matrix, matrix)
    backend = CpuBackend(3)
    weights = ModelWeights(matrix, matrix, [block], matrix[0], matrix, matrix)
    transposes = Transposes(weights, backend.thread_pool)
    for _ in range(2):
        matrix += 1
        transposes.refresh()
        for found in (transposes.weights.heads, transposes.weights.blocks[0].down):
            np.testing.assert_array_equal(found, matrix)
            assert found.T.flags.c_contiguous


@pytest.mark.parametrize("accumulate", [False, True])
def test_embedding(ops, random, accumulate):
    ids = random.integers(0, 9, 130).astype(np.int32)

    def call(backend, table, out, dtable):
        backend.embedding(ids, table, out)
        backend.embedding_backward(ids, out, dtable, accumulate=accumulate)

    shapes = (9, 40), (130, 40), (9, 40)
    both(ops, call, *(normal(random, *shape) for shape in shapes), outputs=(1, 2))


@pytest.mark.parametrize("shape", [(1, 6), (200, 128), (65, 37)])
@pytest.mark.parametrize("flag", [False, True])
def test_rms_norm(ops, random, shape, flag):
    N, D = shape
    arrays = [normal(random, *shape) for shape in [shape] * 6 + [(D,), (D,), (N,)]]

    def call(backend, x, delta, total, out, dout, dx, weight, dweight, inverse):
        backend.add_rms_norm(x, delta, 0.7, RmsNorm(total, weight, 1e-5, out, inverse))
        norm = RmsNorm(x, weight, 1e-5, delta, inverse)
        backend.rms_norm(norm)
        into = NormGradients(dx, dweight, None, flag, flag, dout if flag else None)
        backend.rms_norm_backward(dout, norm, into)

    both(ops, call, *arrays, outputs=(1, 2, 3, 4, 5, 7, 8))


@pytest.mark.parametrize("inverse", [False, True])
def test_rope_rotates_heads_inside_a_packed_product(ops, random, inverse):
    positions = random.integers(0, 50, 130).astype(np.int32)

    def call(backend, packed):
        heads = packed[:, 6:30].reshape(130, 4, 6)
        backend.rope(heads, positions, backend.rope_table(50, 6, 100.0), inverse=inverse)

    both(ops, call, normal(random, 130, 36), outputs=(0,))


@pytest.mark.parametrize("in_place", [False, True])
def test_swiglu(ops, random, in_place):
    def call(backend, packed, out, dout, dpacked):
        gate, up = packed[:, :11], packed[:, 12:23]
        backend.swiglu(gate, up, out)
        gradients = (gate, up) if in_place else (dpacked[:, :11], dpacked[:, 12:23])
        backend.swiglu_backward(dout, gate, up, *gradients, dout if in_place else None)

    arrays = [normal(random, 130, columns) for columns in (24, 11, 11, 24)]
    arrays[0] *= np.float32(4)
    both(ops, call, *arrays, outputs=(0, 1, 2, 3))


def test_swiglu_and_cross_entropy_stay_finite_at_extremes(ops):
    gate, out = np.array([[1e4, -1e4, 0.0]], np.float32), np.empty((1, 3), np.float32)
    ops.swiglu(gate, np.full_like(gate, 2.0), out)
    np.testing.assert_allclose(out, [[2e4, 0.0, 0.0]], atol=1e-30)
    logits = np.array([[1e4, 0.0, -1e4]], np.float32)
    targets = np.array([1], np.int32)
    logprobs, lse = np.empty((2, 1), np.float32)
    rows = LogitRows(logits, targets, logprobs, lse, np.ones(1, np.float32))
    ops.cross_entropy(rows)
    assert (logprobs[0], lse[0]) == (-1e4, 1e4)
    ops.cross_entropy_backward(rows)
    np.testing.assert_allclose(logits, [[1, -1, 0]], atol=1e-30)


def test_a_nan_stays_a_nan(ops):
    logits = np.array([[0.0, np.nan, 1.0]], np.float32)
    targets = np.array([0], np.int32)
    logprobs, lse = np.empty((2, 1), np.float32)
    rows = LogitRows(logits, targets, logprobs, lse, np.ones(1, np.float32))
    ops.cross_entropy(rows)
    assert np.isnan(logprobs[0])
    ops.cross_entropy_with_gradient(rows)
    assert np.isnan(logprobs[0])
    assert np.isnan(logits).all()


@pytest.mark.parametrize("shape", [(1, 6), (200, 128), (65, 37)])
@pytest.mark.parametrize("flag", [False, True])
def test_layer_norm(ops, random, shape, flag):
    N, D = shape
    arrays = [normal(random, *shape) for shape in [shape] * 6 + [(D,)] * 5 + [(N,)]]
    arrays[0] += 2

    def call(backend, x, delta, total, out, dout, dx, weight, bias, step_bias, dw, db, inverse):
        norm = LayerNorm(total, weight, bias, 1e-5, out, inverse)
        backend.add_layer_norm(x, delta, step_bias, 0.7, norm)
        norm = norm._replace(x_ND=x, out_ND=delta)
        backend.layer_norm(norm)
        into = NormGradients(dx, dw, db, flag, flag, dout if flag else None)
        backend.layer_norm_backward(dout, norm, into)

    both(ops, call, *arrays, outputs=(1, 2, 3, 4, 5, 9, 10, 11))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rows", [1, 7, 130])
@pytest.mark.parametrize("flag", [False, True])
def test_gelu_and_biases_with_their_products(ops, random, rows, flag):
    """The weight of a training step may be a transpose."""
    sizes = [(rows, 24), (37, 24), (37,), (rows, 37), (rows, 37), (24, 37), (24,)]
    arrays = [normal(random, *shape) for shape in sizes]
    points = [normal(random, *shape) for shape in [(rows, 24)] * 4 + [(24,), (24,), (rows,)]]
    sums = normal(random, 37, 24), normal(random, 37)
    if flag:
        arrays[1], arrays[5] = (np.asfortranarray(arrays[index]) for index in (1, 5))

    def call(backend, x, weight, bias, up, out, down, down_bias, *others):
        point, delta, total, normed, norm_weight, norm_bias, inverse, dweight, dbias = others
        backend.linear_bias(x, weight, bias, up)
        backend.linear_gelu(x, weight, bias, up, out)
        norm = LayerNorm(total, norm_weight, norm_bias, 1e-5, normed, inverse)
        backend.euler_step(out, down, EulerStep(point, delta, 0.7, norm, down_bias))
        if flag:
            backend.gelu(up, out)
            backend.gelu_backward(out.copy(), up, up)
        else:
            backend.linear_gelu_backward(x, down, 0.5, up, out)
        backend.linear_bias_backward(up, x, dweight, dbias, accumulate=flag, scale=0.3)

    both(ops, call, *arrays, *points, *sums, outputs=(3, 4, 9, 10, 13, 14, 15))


def test_a_position_beyond_the_table_takes_its_last_row(ops, random):
    def call(backend, ids, positions, table, positions_table, out):
        backend.embedding_at(ids, table, positions, positions_table, out)

    ids, positions = random.integers(0, 9, (2, 130)).astype(np.int32)
    tables = normal(random, 9, 40), normal(random, 7, 40)
    both(ops, call, ids, positions, *tables, normal(random, 130, 40), outputs=(4,))


def test_gelu_stays_finite_at_extremes(ops):
    x = np.array([[1e4, -1e4, 0.0, 40.0, -40.0]], np.float32)
    out, dx = np.empty((2, 1, 5), np.float32)
    ops.gelu(x, out)
    ops.gelu_backward(np.ones_like(x), x, dx)
    np.testing.assert_allclose(out, [[1e4, 0, 0, 40, 0]], atol=1e-30)
    np.testing.assert_allclose(dx, [[1, 0, 0.5, 1, 0]], atol=1e-20)


ATTENTION = {
    "one tile": (2, 32, 4, 2, 32),
    "a length that is no multiple of a tile": (2, 167, 4, 2, 32),
    "several tiles of keys": (1, 300, 2, 1, 16),
    "one token": (3, 1, 2, 2, 8),
    "one row, one head": (1, 33, 1, 1, 64),
    "six heads share a key, odd head size": (1, 45, 6, 1, 6),
    "wider heads than a tile": (1, 40, 2, 1, 80),
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("documents", [False, True])
def test_attention(ops, random, case, documents):
    B, T, H, G, E = ATTENTION[case]
    starts = np.zeros((B, T), np.int32)
    if documents:  # boundaries anywhere; two are adjacent, so that a document has one token
        boundaries = np.sort(random.integers(0, T, 3))
        for boundary in [*boundaries, min(boundaries[-1] + 1, T - 1)]:
            starts[:, boundary:] = boundary
    offset = np.zeros(B, np.int32)

    def call(backend, packed, out, lse, dout, dpacked):
        parts = slice(H * E), slice(H * E, (H + G) * E), slice((H + G) * E, None)
        q, k, v = (packed[:, :, part].reshape(B, T, -1, E) for part in parts)
        saved = AttentionArrays(q, k, v, out)
        dq, dk, dv = (dpacked[:, :, part].reshape(B, T, -1, E) for part in parts)
        gradients = AttentionArrays(dq, dk, dv, dout)
        backend.attention(saved, starts, offset, lse)
        backend.attention_backward(saved, gradients, starts, lse)

    packed = B, T, (H + 2 * G) * E
    shapes = packed, (B, T, H, E), (B, H, T), (B, T, H, E), packed
    arrays = [normal(random, *shape) for shape in shapes]
    if T == 1:  # a single key: the gradients of query and key are exactly 0
        both(ops, call, *arrays, outputs=(1, 2))
        assert not arrays[4][:, :, : (H + G) * E].any()
        dvalue = arrays[4][:, :, (H + G) * E :].reshape(B, G, -1, E)
        dout = arrays[3].reshape(B, G, -1, E)
        np.testing.assert_array_equal(dvalue.sum(axis=2), dout.sum(axis=2))
    else:
        both(ops, call, *arrays, outputs=(1, 2, 4))


@pytest.mark.parametrize("new", [1, 2, 40])
def test_attention_over_a_cache(ops, random, new):
    B, S, H, G, E = 3, 150, 4, 2, 32
    offset = np.array([0, 60, S - new], np.int32)
    starts = np.zeros((B, new), np.int32)

    def call(backend, query, keys, values, out, lse):
        backend.attention(AttentionArrays(query, keys, values, out), starts, offset, lse)

    shapes = (B, new, H, E), (B, S, G, E), (B, S, G, E), (B, new, H, E), (B, H, new)
    both(ops, call, *(normal(random, *shape) for shape in shapes), outputs=(3, 4))


@pytest.mark.parametrize("targets", ["all", "some", "none"])
def test_cross_entropy(ops, random, targets):
    R, V = 200, 37
    chosen = random.integers(0, V, R).astype(np.int32)
    chosen[{"all": [], "some": [0, 5, R - 1], "none": slice(None)}[targets]] = -1
    padded = normal(random, R, V + 3) * np.float32(3)

    def call(backend, padded, logprobs, lse, weights, losses):
        rows = LogitRows(padded[:, :V], chosen, logprobs, lse, weights)
        backend.cross_entropy(rows)
        backend.add_losses(logprobs.reshape(-1, 4), weights.reshape(-1, 4), losses)
        backend.cross_entropy_backward(rows)

    logprobs, lse = normal(random, R), normal(random, R)
    weights = np.abs(normal(random, R))
    both(ops, call, padded, logprobs, lse, weights, np.zeros(2), outputs=(0, 1, 2, 4))


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("vocabulary", [37, 512])
@pytest.mark.parametrize("targets", ["all", "some", "none"])
def test_cross_entropy_in_one_pass(ops, random, rows, vocabulary, targets):
    chosen = random.integers(0, vocabulary, rows).astype(np.int32)
    chosen[{"all": [], "some": [0, rows // 2, rows - 1], "none": slice(None)}[targets]] = -1
    padded = normal(random, rows, vocabulary + 3) * np.float32(3)
    beside = padded[:, vocabulary:].copy()

    def call(backend, padded, logprobs, lse, weights):
        rows = LogitRows(padded[:, :vocabulary], chosen, logprobs, lse, weights)
        backend.cross_entropy_with_gradient(rows)

    logprobs, lse = normal(random, rows), normal(random, rows)
    weights = np.abs(normal(random, rows))
    both(ops, call, padded, logprobs, lse, weights, outputs=(0, 1, 2))
    np.testing.assert_array_equal(padded[:, vocabulary:], beside)


def test_adamw_and_the_norm(ops, random):
    n = 100_003
    flat = [normal(random, n) for _ in range(3)]

    def call(backend, parameters, gradients, first, second):
        norm = backend.squares(gradients).sum()
        flat = FlatState(parameters, parameters, gradients)
        runs = [ParameterRun(slice(None), decays=True, rate=2.5)]
        constants = AdamWConstants(0.9, 0.95, 1e-8, 0.1)
        scalars = np.array([1, 0.5, 1e-2, 3])
        backend.move("adamw", flat, (first, second), runs, constants, scalars)
        gradients[0] = norm

    both(ops, call, *flat, np.abs(normal(random, n)), outputs=(0, 1, 2, 3))


def test_any_number_of_threads_gives_the_same_norm(random):
    values = normal(random, 300_000)
    assert len({float(CpuBackend(threads).squares(values)[0]) for threads in (1, 2, 5)}) == 1


def test_the_ops_at_sizes_that_fit_no_tile(ops):
    """The cases of `nanoeuler check --device cpu`.

    One row, one head, odd lengths, padded rows, decoding, all targets masked.
    """
    found = check_device_ops(ops)
    assert not [comparison for comparison in found if not comparison.error <= TOLERANCE]
