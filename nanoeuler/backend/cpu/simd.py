"""Vector code in LLVM's own instructions: a tile of a matrix product, exp, a row's maximum.

LLVM vectorises a plain loop, but it does not keep a block of sums in registers, which is what makes
a matrix product fast. `make_tile` writes that block with LLVM's vector types, which become AVX-512,
AVX2 or NEON, as the processor has it. Numba has no vectorised exp, either: `exp` is a polynomial
that the compiler inlines and vectorises.

All of it has the same bits on any processor with a fused multiply-add. A sum has one lane for each
of LANES numbers, whatever the registers, and the lanes are added up in one order. No function is
compiled with fast mathematics, which would let LLVM choose an order that suits the processor.

An intrinsic takes an array and the index `at` of the first element that it works on.
"""

import math
from collections.abc import Callable

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.system.compiling import compiled


def features() -> dict[str, bool]:
    """What the processor has that code is compiled for: this one, or that of NUMBA_CPU_FEATURES."""
    if numba.config.CPU_FEATURES is None:
        return dict(llvm.get_host_cpu_features())
    named = numba.config.CPU_FEATURES.split(",")
    return {name[1:]: name[0] == "+" for name in named if name}


HAS = features()
WIDE = HAS.get("avx512f", False)
FUSES = HAS.get("fma", "sse2" not in llvm.get_host_cpu_features())
"""Whether the processor multiplies and adds with one rounding, as all but old x86 ones do."""
LANES = 16
"""Floats in a vector. On a processor with narrower registers, LLVM takes some for each vector."""
ROWS = 8 if WIDE else 4
TILE_VECTORS = 2 if WIDE else 1
COLUMNS = TILE_VECTORS * LANES
"""The tile's size: its sums fit into registers, and hide the latency of a multiply-add."""

FLOAT, SIZE, INT, BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
VECTOR = ir.VectorType(FLOAT, LANES)

# ---- pieces of generated code


def data_pointer(context, builder, kind, array):
    """Pointer to the first element of an array of the Numba type `kind`."""
    return context.make_array(kind)(context, builder, array).data


def vector_pointer(builder, base, index):
    """Pointer to the vector that starts `index` floats behind `base`."""
    return builder.bitcast(builder.gep(base, [index]), VECTOR.as_pointer())


def load_floats(builder, base, index, type=VECTOR):
    """A vector, or with the type FLOAT one number, `index` elements behind `base`, which points to
    floats or to bytes."""
    place = builder.gep(base, [index])
    if base.type.pointee != BYTE:
        return builder.load(builder.bitcast(place, type.as_pointer()), align=4)
    bytes, integers = (
        ir.VectorType(kind, LANES) if type == VECTOR else kind for kind in (BYTE, INT)
    )
    whole = builder.load(builder.bitcast(place, bytes.as_pointer()), align=1)
    return builder.sitofp(builder.sext(whole, integers), type)


def vector_constant(value):
    """A vector with the number `value` in every lane."""
    return ir.Constant(VECTOR, [float(value)] * LANES)


def spread(builder, scalar):
    """A vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(INT, 0))
    lanes = ir.Constant(ir.VectorType(INT, LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, lanes)


def call_vector_function(builder, name, *arguments):
    """LLVM's own function `name` on vectors of floats."""
    vector = arguments[0].type
    function_type = ir.FunctionType(vector, [vector] * len(arguments))
    name = f"llvm.{name}.v{vector.count}f32"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


def multiply_add(builder, a, b, c):
    """a · b + c of vectors or numbers, with one rounding where the processor can."""
    if isinstance(a.type, ir.VectorType):
        return call_vector_function(builder, "fma" if FUSES else "fmuladd", a, b, c)
    name = "llvm.fma.f32" if FUSES else "llvm.fmuladd.f32"
    function_type = ir.FunctionType(FLOAT, [FLOAT] * 3)
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, (a, b, c))


def largest_lane(builder, vector, fastmath=()):
    """The largest number of a vector."""
    function_type = ir.FunctionType(FLOAT, [vector.type])
    name = f"llvm.vector.reduce.fmax.v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, [vector], fastmath=fastmath)


def sum_of_lanes(builder, vector):
    """The sum of a vector's numbers, in the order of `add_lanes`."""
    return builder.extract_element(add_lanes(builder, [vector]), ir.Constant(INT, 0))


# ---- matrix products


def make_tile(accumulate: bool) -> Callable[..., None]:
    """The intrinsic for a tile of ROWS × COLUMNS elements of c:

        c[i, j] = Σₖ a[i, k] · b[k, j]    (added to c with `accumulate`)

    The matrices lie in one array of float32, where c[i, j] has the index at + i · stride + j, and
    b[k, j] likewise; a[i, k] has the index at + i · stride + k · step.
    """

    @intrinsic
    def tile(context, array, c_at, c_stride, a_at, a_stride, a_step, b_at, b_stride, depth):
        def generate(context, builder, signature, arguments):
            base = data_pointer(context, builder, signature.args[0], arguments[0])
            c_at, c_stride, a_at, a_stride, a_step, b_at, b_stride, depth = arguments[1:]

            def vectors(at, index, stride):
                """Pointers to the vectors of a row."""
                first = vector_pointer(builder, base, builder.add(at, builder.mul(stride, index)))
                return [builder.gep(first, [ir.Constant(SIZE, i)]) for i in range(TILE_VECTORS)]

            rows = [ir.Constant(SIZE, row) for row in range(ROWS)]
            targets = [vector for row in rows for vector in vectors(c_at, row, c_stride)]
            # LLVM turns these variables into registers
            sums = [cgutils.alloca_once(builder, VECTOR) for _ in targets]
            zeros = ir.Constant(VECTOR, None)
            for target, total in zip(targets, sums, strict=True):
                builder.store(builder.load(target, align=4) if accumulate else zeros, total)
            with cgutils.for_range(builder, depth) as loop:
                pointers = vectors(b_at, loop.index, b_stride)
                right = [builder.load(pointer, align=4) for pointer in pointers]
                column = builder.add(a_at, builder.mul(a_step, loop.index))
                for i, row in enumerate(rows):
                    index = builder.add(column, builder.mul(a_stride, row))
                    left = spread(builder, builder.load(builder.gep(base, [index])))
                    of_row = sums[TILE_VECTORS * i : TILE_VECTORS * (i + 1)]
                    for total, vector in zip(of_row, right, strict=True):
                        add_to(builder, total, left, vector)
            for target, total in zip(targets, sums, strict=True):
                builder.store(builder.load(total), target, align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(array, *[size] * 8), generate

    return tile


def add_to(builder, total, left, right):
    """total += left · right, for vectors."""
    builder.store(multiply_add(builder, left, right, builder.load(total)), total)


set_tile = make_tile(accumulate=False)
add_tile = make_tile(accumulate=True)


@compiled()
def set_product(array, c, a, b, sizes):
    """c = a b for matrices in `array`, in whole tiles.

    `c` and `b` are (index of the first element, stride of rows), `a` has also the stride of
    columns. `sizes` are rows, columns and depth. Rows and columns are rounded up to whole tiles,
    for which all three matrices need memory.
    """
    c_at, c_stride = c
    a_at, a_stride, a_step = a
    b_at, b_stride = b
    rows, columns, depth = sizes
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            tile_at, row_at = c_at + i * c_stride + j, a_at + i * a_stride
            set_tile(array, tile_at, c_stride, row_at, a_stride, a_step, b_at + j, b_stride, depth)


@compiled()
def add_product(array, c, a, b, sizes):
    """c += a b, like `set_product`."""
    c_at, c_stride = c
    a_at, a_stride, a_step = a
    b_at, b_stride = b
    rows, columns, depth = sizes
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            tile_at, row_at = c_at + i * c_stride + j, a_at + i * a_stride
            add_tile(array, tile_at, c_stride, row_at, a_stride, a_step, b_at + j, b_stride, depth)


# ---- sums along the rows of a weight


def make_dots(tokens: int, rows: int) -> Callable[..., None]:
    """The intrinsic for sums along a few rows of a weight, each with a few vectors x, for
    r < `rows` and t < `tokens`:

        out[out_at + t · out_stride + r]
            = Σ weight[at + r · stride + i] · x[x_at + t · x_stride + i]

    over i < count. The weight's numbers may be bytes. Every sum is added up in one order, whatever
    `rows` and `tokens`.
    """

    @intrinsic
    def dots(context, weight, at, stride, count, x, x_at, x_stride, out, out_at, out_stride):
        def generate(context, builder, signature, arguments):
            weight, x, out = (
                data_pointer(context, builder, signature.args[i], arguments[i]) for i in (0, 4, 7)
            )
            at, stride, count, x_at, x_stride, out_at, out_stride = (
                arguments[i] for i in (1, 2, 3, 5, 6, 8, 9)
            )

            def places(base, at, stride, number):
                """Pointers to the first elements of `number` vectors."""
                offsets = [builder.mul(stride, ir.Constant(SIZE, i)) for i in range(number)]
                return [builder.gep(base, [builder.add(at, offset)]) for offset in offsets]

            lefts, rights = places(weight, at, stride, rows), places(x, x_at, x_stride, tokens)
            zeros, pairs = ir.Constant(VECTOR, None), range(rows * tokens)
            sums = [cgutils.alloca_once_value(builder, zeros) for _ in pairs]

            def add(index, totals):
                left = [load_floats(builder, pointer, index) for pointer in lefts]
                for t, pointer in enumerate(rights):
                    right = load_floats(builder, pointer, index)
                    for r in range(rows):
                        add_to(builder, totals[t * rows + r], left[r], right)

            def constant(value):
                return ir.Constant(SIZE, value)

            whole = builder.sdiv(count, constant(LANES))
            with cgutils.for_range(builder, whole) as loop:
                add(builder.mul(loop.index, constant(LANES)), sums)
            done = builder.mul(whole, constant(LANES))
            of_all = add_lanes(builder, [builder.load(total) for total in sums])
            totals = []
            for i in pairs:
                total = builder.extract_element(of_all, ir.Constant(INT, i))
                totals.append(cgutils.alloca_once_value(builder, total))
            with cgutils.for_range(builder, builder.sub(count, done)) as loop:
                index = builder.add(done, loop.index)
                for t, right in enumerate(rights):
                    for r, left in enumerate(lefts):
                        product = builder.fmul(
                            *(load_floats(builder, each, index, FLOAT) for each in (left, right))
                        )
                        total = totals[t * rows + r]
                        builder.store(builder.fadd(builder.load(total), product), total)
            for t, target in enumerate(places(out, out_at, out_stride, tokens)):
                for r in range(rows):
                    total = builder.load(totals[t * rows + r])
                    builder.store(total, builder.gep(target, [constant(r)]))
            return context.get_dummy_value()

        size = types.intp
        arguments = weight, size, size, size, x, size, size, out, size, size
        return types.void(*arguments), generate

    return dots


one_dot, key_dots, four_dots, eight_dots = (
    make_dots(*shape) for shape in ((1, 1), (1, 4), (2, 2), (4, 2))
)


def add_lanes(builder, vectors):
    """A vector with the sum of the lanes of each of `vectors`, whose number is a power of two.

    The halves of a vector are added until one number is left. Those of two vectors are added at
    once, so that there are fewer shuffles than sums.
    """

    def pick(lanes, first, second):
        mask = ir.Constant(ir.VectorType(INT, len(lanes)), lanes)
        return builder.shuffle_vector(first, second, mask)

    width = vectors[0].type.count  # lanes that are left of each sum
    while width > 1:
        others = vectors[1::2] or [ir.Constant(vectors[0].type, ir.Undefined)]
        count = vectors[0].type.count
        lanes = range(2 * count if len(vectors) > 1 else count)
        low, high = (
            [lane for lane in lanes if (lane % width >= width // 2) == half]
            for half in (False, True)
        )
        vectors = [
            builder.fadd(pick(low, *both), pick(high, *both))
            for both in zip(vectors[::2], others, strict=True)
        ]
        width //= 2
    return vectors[0]


# ---- exp and log


@intrinsic
def float_of_bits(context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


LOG2_E = np.float32(1 / math.log(2))
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(math.log(2) - 0.693359375)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
HALF, ONE = np.float32(0.5), np.float32(1)


@intrinsic
def fused(context, a, b, c):
    """a · b + c"""

    def generate(context, builder, signature, arguments):
        return multiply_add(builder, *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@compiled()
def exp(x):
    """exp(x) in float32, with an error of about 1e-7; x is kept within −87 … 88.

    exp(x) = 2ⁿ exp(r) with |r| ≤ ln 2 / 2, and exp(r) by its series.
    """
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    whole = np.floor(fused(x, LOG2_E, HALF))
    r = fused(whole, -LN2_LOW, fused(whole, -LN2_HIGH, x))
    series = C7
    for coefficient in (C6, C5, C4, C3, C2, ONE, ONE):
        series = fused(series, r, coefficient)
    return series * float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


def vector_exp(builder, x):
    """`exp` of each lane."""

    lowest, highest = vector_constant(LOWEST), vector_constant(HIGHEST)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    x = builder.select(builder.fcmp_ordered(">", x, highest), highest, x)
    exponent = multiply_add(builder, x, vector_constant(LOG2_E), vector_constant(HALF))
    whole = call_vector_function(builder, "floor", exponent)
    r = multiply_add(builder, whole, vector_constant(-LN2_HIGH), x)
    r = multiply_add(builder, whole, vector_constant(-LN2_LOW), r)
    series = vector_constant(C7)
    for coefficient in (C6, C5, C4, C3, C2, ONE, ONE):
        series = multiply_add(builder, series, r, vector_constant(coefficient))
    integers = ir.VectorType(INT, LANES)
    biased = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * LANES))
    bits = builder.shl(biased, ir.Constant(integers, [23] * LANES))
    return builder.fmul(series, builder.bitcast(bits, VECTOR))


# ---- rows of attention scores and of logits


def make_exponentials(gradients: bool) -> Callable[..., float]:
    """The intrinsic for a row of scores, which returns the sum of their exponentials:

        scores[i] = exp(scores[i] − top)                          for low ≤ i < high
        dscores[i] = scores[i] · (dscores[i] − delta)             with `gradients`

    The rows start at `at` and `dscores_at` in one array. Whole vectors are written: their elements
    outside of low … high become zero.
    """

    @intrinsic
    def exponentials(context, array, at, low, high, top, dscores_at, delta):
        def generate(context, builder, signature, arguments):
            base = data_pointer(context, builder, signature.args[0], arguments[0])
            at, low, high, top, dscores_at, delta = arguments[1:]
            lanes, one = ir.Constant(SIZE, LANES), ir.Constant(SIZE, 1)
            zeros = ir.Constant(VECTOR, None)
            indices = ir.Constant(ir.VectorType(SIZE, LANES), list(range(LANES)))
            total = cgutils.alloca_once_value(builder, zeros)
            top, delta = spread(builder, top), spread(builder, delta)
            low_lanes, high_lanes = spread(builder, low), spread(builder, high)
            first = builder.sdiv(low, lanes)
            stop = builder.sdiv(builder.add(high, ir.Constant(SIZE, LANES - 1)), lanes)
            with cgutils.for_range_slice(builder, first, stop, one) as (number, _):
                start = builder.mul(number, lanes)
                index = builder.add(spread(builder, start), indices)
                inside = builder.and_(
                    builder.icmp_signed(">=", index, low_lanes),
                    builder.icmp_signed("<", index, high_lanes),
                )
                scores = vector_pointer(builder, base, builder.add(at, start))
                value = vector_exp(builder, builder.fsub(builder.load(scores, align=4), top))
                value = builder.select(inside, value, zeros)
                builder.store(value, scores, align=4)
                if gradients:
                    dscores = vector_pointer(builder, base, builder.add(dscores_at, start))
                    difference = builder.fsub(builder.load(dscores, align=4), delta)
                    gradient = builder.select(inside, builder.fmul(value, difference), zeros)
                    builder.store(gradient, dscores, align=4)
                builder.store(builder.fadd(builder.load(total), value), total)
            return sum_of_lanes(builder, builder.load(total))

        size, number = types.intp, types.float32
        return number(array, size, size, size, number, size, number), generate

    return exponentials


exponentials = make_exponentials(gradients=False)
score_gradients = make_exponentials(gradients=True)


@intrinsic
def largest_of_vectors(context, values, at, vectors):
    """The largest of `vectors` · LANES floats; `vectors` is at least 1."""

    def generate(context, builder, signature, arguments):
        values, at, vectors = arguments
        base = data_pointer(context, builder, signature.args[0], values)
        first = builder.load(vector_pointer(builder, base, at), align=4)
        top = cgutils.alloca_once_value(builder, first)
        with cgutils.for_range(builder, vectors) as loop:
            start = builder.add(at, builder.mul(loop.index, ir.Constant(SIZE, LANES)))
            new = builder.load(vector_pointer(builder, base, start), align=4)
            old = builder.load(top)
            builder.store(builder.select(builder.fcmp_ordered(">", new, old), new, old), top)
        return largest_lane(builder, builder.load(top), ("nnan",))

    return types.float32(values, types.intp, types.intp), generate


@compiled()
def largest(values, at, count):
    """The largest of `count` ≥ 1 floats, none of which is NaN.

    A plain loop would compare one float at a time.
    """
    vectors = count // LANES
    top = largest_of_vectors(values, at, vectors) if vectors else values[at]
    for i in range(at + vectors * LANES, at + count):
        top = values[i] if values[i] > top else top
    return top


@intrinsic
def weighted_vector(context, out, out_at, values, at, stride, weights, weights_at, count):
    """The LANES sums over s < count, for j < LANES:

    out[out_at + j] = Σ weights[weights_at + s] · values[at + s · stride + j]

    The values may be bytes. Four sums take turns, so that a multiply-add need not wait for the one
    before.
    """

    def generate(context, builder, signature, arguments):
        out, values, weights = (
            data_pointer(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 5)
        )
        out_at, at, stride, weights_at, count = (arguments[i] for i in (1, 3, 4, 6, 7))
        zeros = ir.Constant(VECTOR, None)
        totals = [cgutils.alloca_once_value(builder, zeros) for _ in range(4)]

        def add(index, total):
            weight = builder.load(builder.gep(weights, [builder.add(weights_at, index)]))
            start = builder.add(at, builder.mul(stride, index))
            value = load_floats(builder, values, start)
            add_to(builder, total, spread(builder, weight), value)

        four = ir.Constant(SIZE, 4)
        fours = builder.sdiv(count, four)
        with cgutils.for_range(builder, fours) as loop:
            for i, total in enumerate(totals):
                index = builder.add(builder.mul(loop.index, four), ir.Constant(SIZE, i))
                add(index, total)
        done = builder.mul(fours, four)
        with cgutils.for_range(builder, builder.sub(count, done)) as loop:
            add(builder.add(done, loop.index), totals[0])
        first, second, third, fourth = map(builder.load, totals)
        total = builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))
        builder.store(total, vector_pointer(builder, out, out_at), align=4)
        return context.get_dummy_value()

    size = types.intp
    return types.void(out, size, values, size, size, weights, size, size), generate
