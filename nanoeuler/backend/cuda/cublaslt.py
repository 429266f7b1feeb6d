"""Matrix products by cuBLASLt, called through ctypes: such calls work while a stream is being
captured, CuPy's own do not.

cuBLASLt is column-major: a row-major (rows, columns) array is its (columns, rows) matrix. The
algorithm of a training step's product is chosen once, by timing what the library's heuristic
proposes, and kept in `algorithms`: with equal algorithms, results are equal to the bit. A
checkpoint stores them, and so does a file in the user's cache folder, so that a second run on the
same machine neither times again nor chooses differently. All other products, whose sizes change
from call to call or whose bits are to be the same on any number of GPUs, take the heuristic's first
proposal.
"""

from __future__ import annotations

import ctypes
import statistics
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy import ndarray as Array

from nanoeuler import log
from nanoeuler.backend.cuda.algorithms import (
    check_algorithms,
    read_algorithms,
    write_algorithms,
)
from nanoeuler.errors import UserError
from nanoeuler.system.machine import cache_folder

WORKSPACE_BYTES = 64 << 20
PROPOSALS = 24

ROUNDS, MARGIN = 3, 0.99
"""Rounds in which the proposals are timed in turns. Another than the library's first proposal is
taken only if it needs less than this share of its time: noise must not decide."""

WORTH_TIMING = 4e9
"""Operations of the smallest product that is timed."""

LARGE = 2e10
LARGE_MILLISECONDS, MILLISECONDS = 50.0, 5.0
"""Length of a turn, for products of at least `LARGE` operations and for smaller ones. A step of
large products runs as fast as the chip's power allows, so that a proposal's energy counts, not its
time: a long turn shows it, as the clock falls until the power is within its limit."""

ASKED_BATCH = 8
"""Matrices of an untimed batch, as the library is told when it proposes an algorithm: how many
there are differs from rank to rank, and their bits must not."""

SLICE_TERMS, SLICES = 64, 8
"""In fp32 a sum of more than `SLICE_TERMS` terms is taken in up to `SLICES` slices, each a product
that adds to those before it. Every addition rounds the sum so far, and one chain through all terms
errs two to three times as much."""

FAST_TERMS = 2048
"""Terms of the longest sum of products of e4m3 that the matrix units add up themselves, with 14
bits; longer ones are carried over into float32 on the way, which takes a tenth more time."""

FLOAT32, BFLOAT16, E4M3 = 0, 14, 28  # cudaDataType
TYPES = {4: FLOAT32, 2: BFLOAT16, 1: E4M3}  # by the bytes of an element
LETTERS = {FLOAT32: "f", BFLOAT16: "b", E4M3: "q"}
COMPUTE = {"fp32": 68, "tf32": 77, "bf16": 68, "fp8": 68}
"""cublasComputeType: float32 is multiplied in float32 or TF32; sums are always in float32."""

# cublasLtMatmulDescAttributes
TRANSPOSE_A, TRANSPOSE_B, SCALE_A, SCALE_B, FAST_SUMS = 3, 4, 17, 18, 25
EPILOGUE, BIAS, AUXILIARY, AUXILIARY_STRIDE = 7, 8, 11, 12
ADD_BIAS, ADD_BIAS_GELU = 4, 164  # cublasLtEpilogue; the second also stores what GELU is taken of
BATCH_COUNT, BATCH_DISTANCE = 5, 6  # cublasLtMatrixLayoutAttributes
MAX_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes
REDUCE_IN_COMPUTE_TYPE = 2
ALIGNMENT = 16


class Algorithm(ctypes.Structure):
    """An algorithm with its settings: opaque, and plain bytes."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Proposal(ctypes.Structure):
    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass
class Operand:
    """A matrix as cuBLASLt sees it."""

    pointer: int
    rows: int
    columns: int
    stride: int  # elements from a column to the next
    type: int
    count: int = 1  # of matrices of this form, one behind the other
    distance: int = 0  # elements from one of them to the next

    @classmethod
    def of(cls, array: Array) -> Operand:
        """A row-major array whose last dimension is contiguous, or several in a third dimension."""
        rows, columns = array.shape[-2:]
        size = array.itemsize
        if columns > 1 and array.strides[-1] != size:
            raise ValueError(f"the rows of a matrix must be contiguous; strides {array.strides}")
        stride = array.strides[-2] // size if rows > 1 else columns
        kind = TYPES[size]
        several = (array.shape[0], array.strides[0] // size) if array.ndim == 3 else (1, 0)
        return cls(array.data.ptr, columns, rows, stride, kind, *several)

    @property
    def key(self) -> str:
        form = f"{self.rows}x{self.columns}/{self.stride}{LETTERS[self.type]}"
        return form if self.count == 1 else f"{self.count}*{form}+{self.distance}"


class Prepared(NamedTuple):
    """A product's descriptors and its algorithm."""

    description: ctypes.c_void_p
    left: ctypes.c_void_p
    right: ctypes.c_void_p
    result: ctypes.c_void_p
    algorithm: Algorithm


class Biased(NamedTuple):
    """Epilogue of a product out = x Wᵀ: out += bias, or up = out + bias and out = gelu(up)."""

    bias: Array  # of the type of out, one element for each of its columns
    up: Array | None  # of the shape of out, contiguous

    @property
    def key(self) -> str:
        return "+bias" if self.up is None else "+bias gelu"


class CublasLt:
    """out = scale · op(a) op(b) (+ another array), on one stream."""

    def __init__(self, precision: str, stream: cupy.cuda.Stream, machine: str):
        """`machine` names what timings hold for."""
        self.cublas = load_cublas()
        self.compute = COMPUTE[precision]
        self.stream = stream
        self.in_slices = precision == "fp32"
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))
        self.workspace = cupy.empty(WORKSPACE_BYTES, np.uint8)
        self.prepared: dict[tuple[str, bool], Prepared] = {}
        # the same by the arrays' form, a key that takes less time to put together
        self.forms: dict[tuple[object, ...], Prepared] = {}
        name = f"products {machine} {self.version}.json".replace(" ", "-").replace("/", "-")
        self.file = cache_folder() / name
        self.algorithms: dict[str, str] = read_algorithms(self.file)
        """Product → algorithm, in hexadecimal."""
        self.tuned = False
        """Do the products at hand take the algorithms that were chosen by timing?"""
        self.announced = False
        self.without_epilogue: set[tuple[object, ...]] = set()
        """Forms of biased products that the library does not have."""

    @property
    def version(self) -> int:
        self.cublas.cublasLtGetVersion.restype = ctypes.c_size_t
        return self.cublas.cublasLtGetVersion()

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.cublas, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def multiply(
        self,
        a: Array,
        transpose_a: bool,
        b: Array,
        transpose_b: bool,
        out: Array,
        scale: float = 1.0,
        add: Array | None = None,
        add_scale: float = 1.0,
        inverses: tuple[int, int] | None = None,
    ) -> None:
        """Row-major out = scale · op(a) op(b) + add_scale · add.

        Of e4m3, `inverses` are the addresses of two floats by which a and b are multiplied, and b
        is transposed.

        `add` has the shape, type and strides of `out`, and may be `out`. Arrays of three
        dimensions are as many products, each of one matrix of either array.
        """
        terms = a.shape[-2 if transpose_a else -1]
        if not self.in_slices or terms <= SLICE_TERMS or a.ndim == 3:
            addend = add, add_scale
            self.multiply_whole(a, transpose_a, b, transpose_b, out, scale, *addend, inverses)
            return
        step = slice_terms(terms)
        for start in range(0, terms, step):
            part = slice(start, start + step)
            left = a[part] if transpose_a else a[:, part]
            right = b[:, part] if transpose_b else b[part]
            so_far = (out, 1.0) if start else (add, add_scale)
            self.multiply_whole(left, transpose_a, right, transpose_b, out, scale, *so_far)

    def multiply_biased(
        self,
        x_NI: Array,
        weight_OI: Array,
        out_NO: Array,
        bias_O: Array,
        up_NO: Array | None = None,
        add_NO: Array | None = None,
        inverses: tuple[int, int] | None = None,
    ) -> bool:
        """out = x Wᵀ + add with what `Biased` says; False where the library does not do it at once.

        `add` and `inverses` as in `multiply`.
        """
        form = x_NI.shape, weight_OI.shape, x_NI.dtype.char, up_NO is None, add_NO is None
        if self.in_slices or form in self.without_epilogue:
            return False
        product = x_NI, False, weight_OI, True, out_NO, 1.0, add_NO, 1.0
        try:
            self.multiply_whole(*product, inverses, Biased(bias_O, up_NO))
        except RuntimeError:  # no algorithm, or none that runs
            self.without_epilogue.add(form)
            return False
        return True

    def multiply_whole(
        self,
        a: Array,
        transpose_a: bool,
        b: Array,
        transpose_b: bool,
        out: Array,
        scale: float,
        add: Array | None,
        add_scale: float,
        inverses: tuple[int, int] | None = None,
        biased: Biased | None = None,
    ) -> None:
        arrays = ((x.shape, x.strides, x.dtype.char, x.data.ptr % ALIGNMENT) for x in (a, b, out))
        kind = biased and biased.key
        form = (*arrays, transpose_a, transpose_b, self.tuned, add is not None, kind)
        if form not in self.forms:
            self.forms[form] = self.prepare_form(
                a, transpose_a, b, transpose_b, out, add is not None, inverses, biased
            )
        if biased:
            self.describe_biased(self.forms[form].description, biased)
        addend = (None, 0.0) if add is None else (add.data.ptr, add_scale)
        if inverses:
            self.describe_inverses(self.forms[form].description, inverses)
        self.launch(self.forms[form], b.data.ptr, a.data.ptr, out.data.ptr, scale, *addend)

    def prepare_form(
        self,
        a: Array,
        transpose_a: bool,
        b: Array,
        transpose_b: bool,
        out: Array,
        adds: bool,
        inverses: tuple[int, int] | None,
        biased: Biased | None,
    ) -> Prepared:
        # row-major out = op(a) op(b) is column-major outᵀ = op(b)ᵀ op(a)ᵀ:
        # the operands are exchanged, their transposes stay
        left, right, result = Operand.of(b), Operand.of(a), Operand.of(out)
        key = f"{left.key}{'T' if transpose_b else 'N'}"
        key += f"·{right.key}{'T' if transpose_a else 'N'}→{result.key}"
        if (left.pointer | right.pointer | result.pointer) % ALIGNMENT:
            key += "unaligned"
        adds = adds and inverses is not None
        if adds:
            key += "+"
        if biased:
            key += biased.key
        if (key, self.tuned) not in self.prepared:
            self.prepared[key, self.tuned] = self.prepare(
                key, left, transpose_b, right, transpose_a, result, inverses, biased, adds=adds
            )
        return self.prepared[key, self.tuned]

    def launch(
        self,
        prepared: Prepared,
        left: int,
        right: int,
        result: int,
        scale: float,
        add: int | None = None,
        add_scale: float = 0.0,
    ) -> None:
        """`left`, `right`, `result` and `add` are addresses."""
        self.call(
            "cublasLtMatmul",
            self.handle,
            prepared.description,
            ctypes.byref(ctypes.c_float(scale)),
            ctypes.c_void_p(left),
            prepared.left,
            ctypes.c_void_p(right),
            prepared.right,
            ctypes.byref(ctypes.c_float(add_scale)),
            ctypes.c_void_p(result if add is None else add),
            prepared.result,
            ctypes.c_void_p(result),
            prepared.result,
            ctypes.byref(prepared.algorithm),
            ctypes.c_void_p(self.workspace.data.ptr),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(self.stream.ptr),
        )

    def prepare(
        self,
        key: str,
        left: Operand,
        transpose_left: bool,
        right: Operand,
        transpose_right: bool,
        result: Operand,
        inverses: tuple[int, int] | None,
        biased: Biased | None,
        *,
        adds: bool,
    ) -> Prepared:
        """A product's descriptors and its algorithm: the library's first proposal or, of a tuned
        product, the fastest one, which is added to `algorithms`. `adds`: it is timed with an
        addend."""
        description = ctypes.c_void_p()
        self.call("cublasLtMatmulDescCreate", ctypes.byref(description), self.compute, FLOAT32)
        for attribute, value in ((TRANSPOSE_A, transpose_left), (TRANSPOSE_B, transpose_right)):
            self.describe(description, attribute, ctypes.c_int(int(value)))
        if inverses:
            self.describe(description, FAST_SUMS, ctypes.c_int8(left.rows <= FAST_TERMS))
            self.describe_inverses(description, inverses)
        if biased:
            self.describe_biased(description, biased)
        layouts = self.layout(left), self.layout(right), self.layout(result)
        asked = layouts
        if not self.tuned and result.distance:
            several = [replace(each, count=ASKED_BATCH) for each in (left, right, result)]
            asked = self.layout(several[0]), self.layout(several[1]), self.layout(several[2])
        if self.tuned and key in self.algorithms:
            # those of a checkpoint replace what was read from the file
            check_algorithms({key: self.algorithms[key]}, "the checkpoint's state.json")
            known = Algorithm.from_buffer_copy(bytes.fromhex(self.algorithms[key]))
            return Prepared(description, *layouts, known)
        alignment = 2 if "unaligned" in key else ALIGNMENT
        proposals = [
            Prepared(description, *layouts, algorithm)
            for algorithm in self.proposals(description, asked, alignment)
        ]
        if not proposals:
            raise RuntimeError(f"cuBLASLt has no algorithm for {key}")
        operations = 2 * result.count * result.columns * left.rows * left.columns
        if not self.tuned or operations < WORTH_TIMING:
            return proposals[0]
        if operations >= LARGE:
            self.announce()
        milliseconds = LARGE_MILLISECONDS if operations >= LARGE else MILLISECONDS
        chosen = proposals[self.fastest(proposals, milliseconds, left, right, result, adds)]
        self.algorithms[key] = bytes(chosen.algorithm).hex()
        write_algorithms(self.file, self.algorithms)
        return chosen

    def describe_inverses(self, description: ctypes.c_void_p, inverses: tuple[int, int]) -> None:
        """`inverses` of the right factor, then of the left one."""
        for attribute, address in zip((SCALE_B, SCALE_A), inverses, strict=True):
            self.describe(description, attribute, ctypes.c_void_p(address))

    def describe_biased(self, description: ctypes.c_void_p, biased: Biased) -> None:
        """Set the epilogue, the address of the bias, and that of GELU's input."""
        epilogue = ADD_BIAS if biased.up is None else ADD_BIAS_GELU
        self.describe(description, EPILOGUE, ctypes.c_int(epilogue))
        self.describe(description, BIAS, ctypes.c_void_p(biased.bias.data.ptr))
        if biased.up is not None:
            self.describe(description, AUXILIARY, ctypes.c_void_p(biased.up.data.ptr))
            stride = ctypes.c_int64(biased.up.shape[1])
            self.describe(description, AUXILIARY_STRIDE, stride)

    def describe(self, description: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self.set("MatmulDesc", description, attribute, value)

    def set(self, kind: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """`value` is one of ctypes' numbers."""
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.call(f"cublasLt{kind}SetAttribute", target, attribute, ctypes.byref(value), size)

    def announce(self) -> None:
        if not self.announced:
            self.announced = True
            log.line(
                "timing",
                "which algorithms take the matrix products, once for this GPU and these sizes:"
                " some twenty seconds",
            )

    def layout(self, operand: Operand) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self.call(
            "cublasLtMatrixLayoutCreate",
            ctypes.byref(layout),
            operand.type,
            ctypes.c_uint64(operand.rows),
            ctypes.c_uint64(operand.columns),
            ctypes.c_int64(operand.stride),
        )
        if operand.count > 1:
            count, distance = ctypes.c_int32(operand.count), ctypes.c_int64(operand.distance)
            for attribute, value in ((BATCH_COUNT, count), (BATCH_DISTANCE, distance)):
                self.set("MatrixLayout", layout, attribute, value)
        return layout

    def proposals(
        self,
        description: ctypes.c_void_p,
        layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
        alignment: int,
    ) -> list[Algorithm]:
        preference = ctypes.c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        settings: list[tuple[int, Any]] = [
            (MAX_WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES)),
            (REDUCTIONS, ctypes.c_uint32(REDUCE_IN_COMPUTE_TYPE)),
        ]
        settings += [(attribute, ctypes.c_uint32(alignment)) for attribute in ALIGNMENTS]
        for attribute, value in settings:
            self.set("MatmulPreference", preference, attribute, value)
        found, count = (Proposal * PROPOSALS)(), ctypes.c_int()
        left, right, result = layouts
        self.call(
            "cublasLtMatmulAlgoGetHeuristic",
            self.handle,
            description,
            left,
            right,
            result,
            result,
            preference,
            PROPOSALS,
            found,
            ctypes.byref(count),
        )
        self.call("cublasLtMatmulPreferenceDestroy", preference)
        return [
            Algorithm.from_buffer_copy(proposal.algorithm)
            for proposal in found[: count.value]
            if proposal.status == 0
        ]

    def fastest(
        self,
        proposals: list[Prepared],
        milliseconds: float,
        left: Operand,
        right: Operand,
        result: Operand,
        adds: bool,
    ) -> int:
        """Index of the fastest proposal, in turns of this length: the first, unless another takes
        less than `MARGIN` of its time."""
        once = [self.time(proposal, left, right, result, adds, 1) for proposal in proposals]
        close = [i for i, time in enumerate(once) if i == 0 or time < 1.2 * min(once)]
        repeats = max(1, int(milliseconds / min(once)))
        rounds = [
            [self.time(proposals[index], left, right, result, adds, repeats) for index in close]
            for _ in range(ROUNDS)
        ]
        medians = map(statistics.median, zip(*rounds, strict=True))
        times = dict(zip(close, medians, strict=True))
        best = min(times, key=times.__getitem__)
        return best if times[best] <= MARGIN * times[0] else 0

    def time(
        self,
        proposal: Prepared,
        left: Operand,
        right: Operand,
        result: Operand,
        adds: bool,
        repeats: int,
    ) -> float:
        """Milliseconds of a proposal on the real operands, the result going elsewhere; infinite
        for one that does not run."""
        itemsize = 4 if result.type == FLOAT32 else 2
        elements = result.count * result.columns * result.stride
        elsewhere = cupy.empty(elements * itemsize, np.uint8)
        addresses = left.pointer, right.pointer, elsewhere.data.ptr
        scales = 1.0, None, float(adds)
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        try:
            self.launch(proposal, *addresses, *scales)
        except RuntimeError:
            return float("inf")
        start.record(self.stream)
        for _ in range(repeats):
            self.launch(proposal, *addresses, *scales)
        stop.record(self.stream)
        stop.synchronize()
        return cupy.cuda.get_elapsed_time(start, stop) / repeats


def slice_terms(terms: int) -> int:
    """Terms of each slice of a sum: a multiple of 8, so that slices start on 16-byte borders."""
    return -(-max(SLICE_TERMS, -(-terms // SLICES)) // 8) * 8


def load_cublas() -> ctypes.CDLL:
    """cuBLASLt, from NVIDIA's packages or the system's CUDA. Raises `UserError` without any."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (DynamicLibNotFoundError, OSError) as error:
        raise UserError(
            "--device cuda: cuBLASLt is missing; install it with the extra cuda13 (or cuda12):"
            " requirements/install.sh cuda13"
        ) from error
