"""Matrix products whose bits depend on no processor: a function like CBLAS's sgemm, in one order.

BLAS has kernels of its own for each kind of processor, and each adds up in another order. Here an
element of c is

    c = alpha · s₀ (+ c),  then c + alpha · s₁, …    with sᵢ = Σₖ a[k] · b[k]

over DEPTH numbers at a time, one after the other, each by a fused multiply-add, which all arm64
processors, and x86-64 ones since 2013, round alike. Vectors lie along the columns of c, so that
their width changes how many sums are computed at once, and no sum. Nor do threads, which take rows
of c.

The algorithm is that of Goto & van de Geijn 2008: parts of `a` and `b` that caches hold are copied
into the order in which a tile of c reads them.
"""

import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.backend.cpu.blas import TRANSPOSED, Sgemm
from nanoeuler.backend.cpu.simd import (
    BYTE,
    FLOAT,
    FUSES,
    HAS,
    INT,
    LANES,
    SIZE,
    VECTOR,
    WIDE,
    call_vector_function,
    spread,
)
from nanoeuler.system.compiling import compiled

DEPTH = 256
"""Numbers that are added up before their sum goes to c. Another value gives other bits."""
TILE_ROWS = 12 if WIDE else 6
TILE_VECTORS = 2 if WIDE else 1
TILE_COLUMNS = TILE_VECTORS * LANES
"""A tile of c: its sums fit into registers."""
CACHE_LINE = 64
PART_ROWS, PART_COLUMNS = 240, 512
"""Sizes of the parts of `a` and `b` that are copied at a time; multiples of the tile's."""
A_STRIDE = DEPTH + 16
"""Floats between copied rows of `a`, which should not all lie in one set of a cache."""


def pointer(builder, address, index, kind=FLOAT):
    """Pointer to a value `index` floats behind an address."""
    place = builder.add(address, builder.mul(index, ir.Constant(SIZE, 4)))
    return builder.inttoptr(place, kind.as_pointer())


@intrinsic
def take_memory(context, size):
    """The address of `size` bytes, by malloc: arrays of Numba want more than a bare call gives."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(BYTE.as_pointer(), [SIZE])
        function = cgutils.get_or_insert_function(builder.module, kind, "malloc")
        return builder.ptrtoint(builder.call(function, arguments), SIZE)

    return types.int64(types.int64), generate


@intrinsic
def give_back(context, address):
    """Free what `take_memory` took."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "free")
        builder.call(function, [builder.inttoptr(arguments[0], BYTE.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def tile(context, c_at, c_stride, a_at, a_stride, a_step, b_at, depth, alpha, keeps):
    """c[i, j] = alpha · Σₖ a[i, k] · b[k, j] (+ c[i, j], with `keeps`) for a tile.

    c[i, j] lies i · c_stride + j floats behind c_at, a[i, k] i · a_stride + k · a_step behind a_at,
    and b[k, j] k · TILE_COLUMNS + j behind b_at.
    """

    def generate(context, builder, signature, arguments):
        c_at, c_stride, a_at, a_stride, a_step, b_at, depth, alpha, keeps = arguments
        rows = [ir.Constant(SIZE, row) for row in range(TILE_ROWS)]
        columns = [ir.Constant(SIZE, LANES * number) for number in range(TILE_VECTORS)]
        zeros = ir.Constant(VECTOR, None)
        sums = [cgutils.alloca_once_value(builder, zeros) for _ in rows for _ in columns]
        lefts = [pointer(builder, a_at, builder.mul(row, a_stride)) for row in rows]
        right = pointer(builder, b_at, ir.Constant(SIZE, 0))
        with cgutils.for_range(builder, depth) as loop:
            first = builder.gep(right, [builder.mul(loop.index, ir.Constant(SIZE, TILE_COLUMNS))])
            vectors = [
                builder.load(
                    builder.bitcast(builder.gep(first, [column]), VECTOR.as_pointer()), align=4
                )
                for column in columns
            ]
            step = builder.mul(loop.index, a_step)
            for row, left in enumerate(lefts):
                factor = spread(builder, builder.load(builder.gep(left, [step])))
                for number, vector in enumerate(vectors):
                    total = sums[TILE_VECTORS * row + number]
                    value = call_vector_function(
                        builder, "fma", factor, vector, builder.load(total)
                    )
                    builder.store(value, total)
        alpha = spread(builder, alpha)
        targets = [
            pointer(builder, c_at, builder.add(builder.mul(row, c_stride), column), VECTOR)
            for row in rows
            for column in columns
        ]
        with builder.if_else(cgutils.as_bool_bit(builder, keeps)) as (then, otherwise):
            with then:
                for target, total in zip(targets, sums, strict=True):
                    old = builder.load(target, align=4)
                    new = call_vector_function(builder, "fma", alpha, builder.load(total), old)
                    builder.store(new, target, align=4)
            with otherwise:
                for target, total in zip(targets, sums, strict=True):
                    builder.store(builder.fmul(alpha, builder.load(total)), target, align=4)
        return context.get_dummy_value()

    s = types.int64
    return types.void(s, s, s, s, s, s, s, types.float32, types.boolean), generate


def make_copy(kind):
    @intrinsic
    def copy(context, source_at, target_at):
        """Copy a value of `kind` from one address to another."""

        def generate(context, builder, signature, arguments):
            source, target = (builder.inttoptr(at, kind.as_pointer()) for at in arguments)
            builder.store(builder.load(source, align=4), target, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy


copy_vector, copy_float = make_copy(VECTOR), make_copy(FLOAT)


@intrinsic
def transpose_square(context, source_at, source_stride, target_at, target_stride):
    """target[j, i] = source[i, j] for a square of LANES rows and columns.

    In steps of 1, 2, 4, …: blocks of that size beside the diagonal change places.
    """

    def generate(context, builder, signature, arguments):
        source_at, source_stride, target_at, target_stride = arguments
        rows = [ir.Constant(SIZE, row) for row in range(LANES)]

        def places(at, stride):
            return [pointer(builder, at, builder.mul(row, stride), VECTOR) for row in rows]

        vectors = [builder.load(place, align=4) for place in places(source_at, source_stride)]
        size, lanes = 1, range(LANES)
        while size < LANES:
            kept, taken = (
                ir.Constant(ir.VectorType(INT, LANES), mask)
                for mask in (
                    [i if not i & size else LANES + i - size for i in lanes],
                    [i + size if not i & size else LANES + i for i in lanes],
                )
            )
            new = list(vectors)
            for i in lanes:
                if not i & size:
                    pair = vectors[i], vectors[i + size]
                    new[i] = builder.shuffle_vector(*pair, kept)
                    new[i + size] = builder.shuffle_vector(*pair, taken)
            vectors, size = new, 2 * size
        for vector, place in zip(vectors, places(target_at, target_stride), strict=True):
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    s = types.int64
    return types.void(s, s, s, s), generate


@compiled()
def copy_rows(source_at, source_stride, target_at, target_stride, rows, columns):
    """Copy a matrix whose rows are contiguous."""
    whole = columns // LANES * LANES
    for row in range(rows):
        source, target = source_at + 4 * row * source_stride, target_at + 4 * row * target_stride
        for column in range(0, whole, LANES):
            copy_vector(source + 4 * column, target + 4 * column)
        for column in range(whole, columns):
            copy_float(source + 4 * column, target + 4 * column)


@compiled()
def copy_transposed(source_at, source_stride, target_at, target_stride, rows, columns):
    """target[j, i] = source[i, j] for i < rows, j < columns."""
    whole_rows, whole = rows // LANES * LANES, columns // LANES * LANES
    for row in range(0, whole_rows, LANES):
        source = source_at + 4 * row * source_stride
        for column in range(0, whole, LANES):
            target = target_at + 4 * (column * target_stride + row)
            transpose_square(source + 4 * column, source_stride, target, target_stride)
    for row in range(rows):
        first = whole if row < whole_rows else 0
        for column in range(first, columns):
            source = source_at + 4 * (row * source_stride + column)
            copy_float(source, target_at + 4 * (column * target_stride + row))


@compiled()
def pack_columns(b_order, b_at, b_stride, packed_at, depth, columns):
    """Strips of TILE_COLUMNS columns of b one behind the other, their rows contiguous.

    What the last one lacks is left as it is: nobody reads the sums of it.
    """
    for j in range(0, columns, TILE_COLUMNS):
        count, target = min(TILE_COLUMNS, columns - j), packed_at + 4 * j * depth
        if b_order == TRANSPOSED:
            source = b_at + 4 * j * b_stride
            copy_transposed(source, b_stride, target, TILE_COLUMNS, count, depth)
        else:
            copy_rows(b_at + 4 * j, b_stride, target, TILE_COLUMNS, depth, count)


@compiled()
def multiply_part(c_at, c_stride, a, b_at, rows, columns, depth, alpha, keeps, edge_at):
    """The product of copied parts. `a`: address, stride and step; `edge`: memory for a tile."""
    a_at, a_stride, a_step = a
    for j in range(0, columns, TILE_COLUMNS):
        b = b_at + 4 * j * depth
        for i in range(0, rows, TILE_ROWS):
            left, target = a_at + 4 * i * a_stride, c_at + 4 * (i * c_stride + j)
            height, width = min(TILE_ROWS, rows - i), min(TILE_COLUMNS, columns - j)
            if height == TILE_ROWS and width == TILE_COLUMNS:
                tile(target, c_stride, left, a_stride, a_step, b, depth, alpha, keeps)
                continue
            if keeps:
                copy_rows(target, c_stride, edge_at, TILE_COLUMNS, height, width)
            tile(edge_at, TILE_COLUMNS, left, a_stride, a_step, b, depth, alpha, keeps)
            copy_rows(edge_at, TILE_COLUMNS, target, c_stride, height, width)


@compiled(no_cfunc_wrapper=False)
def sgemm(
    _, a_order, b_order, m, n, k, alpha, a_at, a_stride, b_at, b_stride, beta, c_at, c_stride
):
    """c = alpha · a b (+ c, where beta is not 0) for row-major matrices at these addresses."""
    b_size, a_size = DEPTH * PART_COLUMNS, A_STRIDE * PART_ROWS + TILE_ROWS * DEPTH
    memory = take_memory(4 * (b_size + a_size + TILE_ROWS * TILE_COLUMNS) + CACHE_LINE)
    b_part = memory + -memory % CACHE_LINE
    a_part = b_part + 4 * b_size
    edge = a_part + 4 * a_size
    for first in range(0, max(k, 1), DEPTH):
        depth, keeps = min(DEPTH, k - first), beta != 0 or first > 0
        for j in range(0, n, PART_COLUMNS):
            columns = min(PART_COLUMNS, n - j)
            row, column = (j, first) if b_order == TRANSPOSED else (first, j)
            source = b_at + 4 * (row * b_stride + column)
            pack_columns(b_order, source, b_stride, b_part, depth, columns)
            for i in range(0, m, PART_ROWS):
                rows = min(PART_ROWS, m - i)
                if a_order == TRANSPOSED:
                    source, a = a_at + 4 * (first * a_stride + i), (a_part, 1, PART_ROWS)
                    copy_rows(source, a_stride, a_part, PART_ROWS, depth, rows)
                else:
                    source, a = a_at + 4 * (i * a_stride + first), (a_part, A_STRIDE, 1)
                    copy_rows(source, a_stride, a_part, A_STRIDE, rows, depth)
                target = c_at + 4 * (i * c_stride + j)
                multiply_part(target, c_stride, a, b_part, rows, columns, depth, alpha, keeps, edge)
    give_back(memory)


class OrderedProducts:
    """`sgemm` in the place of BLAS's: see `Blas`."""

    label = "own, in one order"
    wants_transposes = False

    def __init__(self) -> None:
        size, order, scalar = types.int64, types.int32, types.float32
        matrix = size, size
        numbers = *[order] * 3, *[size] * 3, scalar, *matrix, *matrix, scalar, *matrix
        sgemm.compile(numbers)
        code = sgemm.overloads[numbers]
        address = code.library.get_pointer_to_function(code.fndesc.llvm_cfunc_wrapper_name)
        self.sgemm: Sgemm = (address, True, 0)


def unordered() -> str | None:
    """Why products, and all else, may round otherwise here than on other processors."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return None
    if machine not in ("x86_64", "amd64"):
        return f"was compared on x86-64 and arm64 alone, and this processor is {machine}"
    if not (FUSES and HAS.get("avx2")):
        return "takes a processor with AVX2 and FMA, as all but old ones have"
    return None
