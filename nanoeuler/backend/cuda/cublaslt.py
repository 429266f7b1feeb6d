"""Matrix products by cuBLASLt, called through ctypes: such calls work while a stream is being captured, CuPy's own do not.

cuBLASLt is column-major: a row-major (rows, columns) array is its (columns, rows) matrix. The algorithm of a training step's product is
chosen once, by timing what the library's heuristic proposes, and kept in `plan`: equal plans give equal bits. A checkpoint stores it, and
so does a file in the user's cache folder, so that a second run on the same machine neither times again nor chooses otherwise. Everything
else, whose sizes change from call to call, takes the heuristic's first proposal, whatever the plan says.
"""

import contextlib
import ctypes
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.files import write_json

WORKSPACE_BYTES = 64 << 20
PROPOSALS = 24
ROUNDS, MARGIN = 3, 0.99
"""How often the proposals take turns, and the share of the library's first choice's time that another may take to replace it: noise must not decide."""

WORTH_TIMING = 4e9
"""Operations of the smallest product that is timed."""

LARGE, LARGE_MILLISECONDS, MILLISECONDS = 2e10, 50.0, 5.0
"""How long a turn is, from so many operations on and below. A step of large products runs as fast as the chip's power allows, so that what counts is not
a proposal's time but its energy: a long turn shows it, as the clock falls until the power is what it may be."""

SLICE_TERMS, SLICES = 64, 8
"""In fp32 a sum of more than so many terms is taken in up to so many slices, each a product that adds to those before it: every addition rounds the sum
so far, and a chain through all terms errs two to three times as much."""

FLOAT32, BFLOAT16 = 0, 14  # cudaDataType
COMPUTE = {
    "fp32": 68,
    "tf32": 77,
    "bf16": 68,
}  # cublasComputeType: products of float32 in float32 or TF32, always summed in float32
TRANSPOSE_A, TRANSPOSE_B = 3, 4  # cublasLtMatmulDescAttributes
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

    @classmethod
    def of(cls, array: Any) -> "Operand":
        """A row-major array whose last dimension is contiguous."""
        rows, columns = array.shape
        size = array.itemsize
        if columns > 1 and array.strides[1] != size:
            raise ValueError(f"the rows of a matrix must be contiguous; strides {array.strides}")
        stride = array.strides[0] // size if rows > 1 else columns
        return cls(
            array.data.ptr,
            columns,
            rows,
            stride,
            FLOAT32 if array.dtype == np.float32 else BFLOAT16,
        )

    @property
    def key(self) -> str:
        return f"{self.rows}x{self.columns}/{self.stride}{'f' if self.type == FLOAT32 else 'b'}"


class CublasLt:
    """out = scale · op(a) op(b) (+ another array), on one stream."""

    def __init__(self, precision: str, stream: Any, machine: str):
        """`machine` names what timings hold for."""
        self.cublas = load_cublas()
        self.compute, self.stream, self.in_slices = COMPUTE[precision], stream, precision == "fp32"
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))
        self.workspace = cupy.empty(WORKSPACE_BYTES, np.uint8)
        self.prepared: dict[tuple[str, bool], tuple[Any, ...]] = {}
        self.forms: dict[
            tuple[Any, ...], tuple[Any, ...]
        ] = {}  # the same by the arrays' form, which takes less time to put together
        self.file = cache_folder() / f"products {machine} {self.version}.json".replace(
            " ", "-"
        ).replace("/", "-")
        self.plan: dict[str, str] = read_plan(self.file)
        """Product → algorithm, in hexadecimal."""
        self.planned = False
        """Do the products at hand follow the plan?"""
        self.announced = False

    @property
    def version(self) -> int:
        self.cublas.cublasLtGetVersion.restype = ctypes.c_size_t
        return self.cublas.cublasLtGetVersion()

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cublas, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def multiply(
        self,
        a: Any,
        transpose_a: bool,
        b: Any,
        transpose_b: bool,
        out: Any,
        scale: float = 1.0,
        add: Any = None,
    ) -> None:
        """Row-major out = scale · op(a) op(b) + add; `add` has the shape, type and strides of `out`, and may be `out`."""
        terms = a.shape[0 if transpose_a else 1]
        if not self.in_slices or terms <= SLICE_TERMS:
            self.multiply_whole(a, transpose_a, b, transpose_b, out, scale, add)
            return
        step = slice_terms(terms)
        for start in range(0, terms, step):
            part = slice(start, start + step)
            left, right = (
                a[part] if transpose_a else a[:, part],
                b[:, part] if transpose_b else b[part],
            )
            self.multiply_whole(
                left, transpose_a, right, transpose_b, out, scale, out if start else add
            )

    def multiply_whole(
        self, a: Any, transpose_a: bool, b: Any, transpose_b: bool, out: Any, scale: float, add: Any
    ) -> None:
        form = [(x.shape, x.strides, x.dtype.char, x.data.ptr % ALIGNMENT) for x in (a, b, out)]
        form = (*form, transpose_a, transpose_b, self.planned)
        if form not in self.forms:
            self.forms[form] = self.prepare_form(a, transpose_a, b, transpose_b, out)
        self.launch(
            self.forms[form],
            b.data.ptr,
            a.data.ptr,
            out.data.ptr,
            scale,
            None if add is None else add.data.ptr,
        )

    def prepare_form(
        self, a: Any, transpose_a: bool, b: Any, transpose_b: bool, out: Any
    ) -> tuple[Any, ...]:
        # row-major out = op(a) op(b) is column-major outᵀ = op(b)ᵀ op(a)ᵀ: the operands change places, their transposes stay
        left, right, result = Operand.of(b), Operand.of(a), Operand.of(out)
        key = f"{left.key}{'T' if transpose_b else 'N'}·{right.key}{'T' if transpose_a else 'N'}→{result.key}"
        if (left.pointer | right.pointer | result.pointer) % ALIGNMENT:
            key += "unaligned"
        if (key, self.planned) not in self.prepared:
            self.prepared[key, self.planned] = self.prepare(
                key, left, transpose_b, right, transpose_a, result
            )
        return self.prepared[key, self.planned]

    def launch(
        self,
        prepared: tuple[Any, ...],
        left: int,
        right: int,
        result: int,
        scale: float,
        add: int | None,
    ) -> None:
        description, left_layout, right_layout, result_layout, algorithm = prepared
        self.call(
            "cublasLtMatmul",
            self.handle,
            description,
            ctypes.byref(ctypes.c_float(scale)),
            ctypes.c_void_p(left),
            left_layout,
            ctypes.c_void_p(right),
            right_layout,
            ctypes.byref(ctypes.c_float(0.0 if add is None else 1.0)),
            ctypes.c_void_p(result if add is None else add),
            result_layout,
            ctypes.c_void_p(result),
            result_layout,
            ctypes.byref(algorithm),
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
    ) -> tuple[Any, ...]:
        """Descriptors of a product, and its algorithm: the library's first proposal, or the plan's, which grows by the fastest of them."""
        description = ctypes.c_void_p()
        self.call("cublasLtMatmulDescCreate", ctypes.byref(description), self.compute, FLOAT32)
        for attribute, value in ((TRANSPOSE_A, transpose_left), (TRANSPOSE_B, transpose_right)):
            self.call(
                "cublasLtMatmulDescSetAttribute",
                description,
                attribute,
                ctypes.byref(ctypes.c_int(int(value))),
                ctypes.c_size_t(4),
            )
        layouts = [self.layout(operand) for operand in (left, right, result)]
        if self.planned and key in self.plan:
            return description, *layouts, Algorithm.from_buffer_copy(bytes.fromhex(self.plan[key]))
        proposals = self.proposals(
            description, layouts, ALIGNMENT if not key.endswith("unaligned") else 2
        )
        if not proposals:
            raise RuntimeError(f"cuBLASLt has no algorithm for {key}")
        candidates = [(description, *layouts, algorithm) for algorithm in proposals]
        operations = 2 * result.columns * left.rows * left.columns
        if not self.planned or operations < WORTH_TIMING:
            return candidates[0]
        turn = MILLISECONDS
        if operations >= LARGE:
            turn = LARGE_MILLISECONDS
            self.announce()
        chosen = candidates[self.fastest(candidates, turn, left, right, result)]
        self.plan[key] = bytes(chosen[-1]).hex()
        write_plan(self.file, self.plan)
        return chosen

    def announce(self) -> None:
        if not self.announced:
            self.announced = True
            log.line(
                "timing",
                "which algorithms take the matrix products, once for this GPU and these sizes: some twenty seconds",
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
        return layout

    def proposals(self, description: Any, layouts: list[Any], alignment: int) -> list[Algorithm]:
        preference = ctypes.c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        settings = [
            (MAX_WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES)),
            (REDUCTIONS, ctypes.c_uint32(REDUCE_IN_COMPUTE_TYPE)),
        ]
        settings += [(attribute, ctypes.c_uint32(alignment)) for attribute in ALIGNMENTS]
        for attribute, value in settings:
            self.call(
                "cublasLtMatmulPreferenceSetAttribute",
                preference,
                attribute,
                ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)),
            )
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
        candidates: list[tuple[Any, ...]],
        turn: float,
        left: Operand,
        right: Operand,
        result: Operand,
    ) -> int:
        """Which of the proposals, in turns of so many milliseconds: the first, unless another takes less than `MARGIN` of its time."""
        once = [self.time(candidate, left, right, result, 1) for candidate in candidates]
        close = [
            place
            for place, milliseconds in enumerate(once)
            if place == 0 or milliseconds < 1.2 * min(once)
        ]
        repeats = max(1, int(turn / min(once)))
        rounds = [
            [self.time(candidates[place], left, right, result, repeats) for place in close]
            for _ in range(ROUNDS)
        ]
        times = {
            place: statistics.median(of)
            for place, of in zip(close, zip(*rounds, strict=True), strict=True)
        }
        best = min(times, key=times.__getitem__)
        return best if times[best] <= MARGIN * times[0] else 0

    def time(
        self,
        candidate: tuple[Any, ...],
        left: Operand,
        right: Operand,
        result: Operand,
        repeats: int,
    ) -> float:
        """Milliseconds of a proposal on the real operands, the result going elsewhere; infinite for one that does not run."""
        elsewhere = cupy.empty(
            result.columns * result.stride * (4 if result.type == FLOAT32 else 2), np.uint8
        )
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        try:
            self.launch(candidate, left.pointer, right.pointer, elsewhere.data.ptr, 1.0, None)
        except RuntimeError:
            return float("inf")
        start.record(self.stream)
        for _ in range(repeats):
            self.launch(candidate, left.pointer, right.pointer, elsewhere.data.ptr, 1.0, None)
        stop.record(self.stream)
        stop.synchronize()
        return cupy.cuda.get_elapsed_time(start, stop) / repeats


def slice_terms(terms: int) -> int:
    """Terms of each slice of a sum, a multiple of 8, so that slices start on 16-byte borders."""
    return -(-max(SLICE_TERMS, -(-terms // SLICES)) // 8) * 8


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanoeuler"


def read_plan(path: Path) -> dict[str, str]:
    """The algorithms chosen on this machine before; none when there is no file, or one that cannot be read."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}


def write_plan(path: Path, plan: dict[str, str]) -> None:
    """Keep what was chosen; a folder that cannot be written to only costs the next run its time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, read_plan(path) | plan)


def load_cublas() -> ctypes.CDLL:
    """cuBLASLt, from NVIDIA's packages or the system's CUDA. Raises `UserError` when there is none."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (DynamicLibNotFoundError, OSError) as error:
        raise UserError(
            "--device cuda: cuBLASLt is missing; install it with the extra cuda13 (or cuda12): requirements/install.sh cuda13"
        ) from error
