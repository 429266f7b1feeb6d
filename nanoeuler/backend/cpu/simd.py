"""Vector code inside compiled functions: the inner tile of a matrix product, exp, and a row's maximum.

LLVM turns a plain loop into vector code, but it does not keep a block of sums in registers, which is what makes a matrix
product fast. `make_tile` writes that block in LLVM's own vector types, so it becomes AVX-512, AVX2 or NEON as the
processor has it. Numba ships no vectorised exp either; `exp` here is a polynomial that the compiler inlines and vectorises.
"""

import math

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.compiling import compiled

WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
LANES = 16 if WIDE else 8
"""Floats of a vector register; on a processor with narrower ones LLVM takes two for each."""
ROWS, COLUMNS = (8 if WIDE else 4), 2 * LANES
"""The tile: ROWS · 2 sums stay in registers, enough to hide the latency of a multiply-add."""

FLOAT, SIZE = ir.FloatType(), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)


def make_tile(accumulate: bool):
    """The intrinsic for c[i, j] (+)= Σₖ a[i, k] · b[k, j] for ROWS × COLUMNS elements of c and `depth` values of k.

    c, a and b are float32 arrays; an element lies at `at` + i · stride + j (of a: i · stride + k · step), in floats.
    """

    @intrinsic
    def tile(context, c, c_at, c_stride, a, a_at, a_stride, a_step, b, b_at, b_stride, depth):
        def generate(context, builder, signature, arguments):
            kinds, values = (
                [signature.args[i] for i in (0, 3, 7)],
                [arguments[i] for i in (0, 3, 7)],
            )
            c, a, b = (
                context.make_array(kind)(context, builder, value).data
                for kind, value in zip(kinds, values, strict=True)
            )
            c_at, c_stride, a_at, a_stride, a_step, b_at, b_stride, depth = (
                arguments[i] for i in (1, 2, 4, 5, 6, 8, 9, 10)
            )

            def place(base, at, index, stride):
                return builder.gep(base, [builder.add(at, builder.mul(stride, index))])

            def vectors(pointer):
                first = builder.bitcast(pointer, VECTOR.as_pointer())
                return first, builder.gep(first, [ir.Constant(SIZE, 1)])

            targets = [
                vector
                for row in range(ROWS)
                for vector in vectors(place(c, c_at, ir.Constant(SIZE, row), c_stride))
            ]
            sums = [
                cgutils.alloca_once(builder, VECTOR) for _ in targets
            ]  # LLVM keeps them in registers
            for target, total in zip(targets, sums, strict=True):
                builder.store(
                    builder.load(target, align=4) if accumulate else ir.Constant(VECTOR, None),
                    total,
                )
            multiply_add = vector_function(builder, "fmuladd", 3)
            with cgutils.for_range(builder, depth) as loop:
                right = [
                    builder.load(vector, align=4)
                    for vector in vectors(place(b, b_at, loop.index, b_stride))
                ]
                column = builder.add(a_at, builder.mul(a_step, loop.index))
                for row in range(ROWS):
                    left = spread(
                        builder, builder.load(place(a, column, ir.Constant(SIZE, row), a_stride))
                    )
                    for total, vector in zip(sums[2 * row : 2 * row + 2], right, strict=True):
                        builder.store(
                            builder.call(multiply_add, [left, vector, builder.load(total)]), total
                        )
            for target, total in zip(targets, sums, strict=True):
                builder.store(builder.load(total), target, align=4)
            return context.get_dummy_value()

        size = types.intp
        return types.void(c, size, size, a, size, size, size, b, size, size, size), generate

    return tile


def vector_function(builder, name, arguments):
    """LLVM's own function of that name, of vectors."""
    return cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR] * arguments), f"llvm.{name}.v{LANES}f32"
    )


def spread(builder, scalar):
    """A vector with `scalar` in every lane."""
    first = builder.insert_element(
        ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined),
        scalar,
        ir.Constant(ir.IntType(32), 0),
    )
    return builder.shuffle_vector(
        first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    )


set_tile, add_tile = make_tile(accumulate=False), make_tile(accumulate=True)


@compiled()
def set_product(
    c, c_at, c_stride, a, a_at, a_stride, a_step, b, b_at, b_stride, rows, columns, depth
):
    """c = a b, places as in `make_tile`. Rows and columns are rounded up to whole tiles: all three have room for that."""
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            set_tile(
                c,
                c_at + i * c_stride + j,
                c_stride,
                a,
                a_at + i * a_stride,
                a_stride,
                a_step,
                b,
                b_at + j,
                b_stride,
                depth,
            )


@compiled()
def add_product(
    c, c_at, c_stride, a, a_at, a_stride, a_step, b, b_at, b_stride, rows, columns, depth
):
    """c += a b, like `set_product`."""
    for j in range(0, columns, COLUMNS):
        for i in range(0, rows, ROWS):
            add_tile(
                c,
                c_at + i * c_stride + j,
                c_stride,
                a,
                a_at + i * a_stride,
                a_stride,
                a_step,
                b,
                b_at + j,
                b_stride,
                depth,
            )


@intrinsic
def float_of_bits(context, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


LOG2_E = np.float32(1 / math.log(2))
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(math.log(2) - 0.693359375)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
HALF, ONE = np.float32(0.5), np.float32(1)


@compiled(fastmath={"contract"})
def exp(x):
    """exp(x) = 2ⁿ exp(r) in float32 with |r| ≤ ln 2 / 2 and exp(r) by its series; x is kept within −87 … 88. Error about 1e-7."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    n = np.int32(np.floor(x * LOG2_E + HALF))
    whole = np.float32(n)
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    series = ONE + r * (ONE + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * C7))))))
    return series * float_of_bits((n + np.int32(127)) << np.int32(23))


def vector_exp(builder, x):
    """The same of a vector, in LLVM's instructions."""

    def constant(value):
        return ir.Constant(VECTOR, [float(value)] * LANES)

    def call(name, *arguments):
        return builder.call(vector_function(builder, name, len(arguments)), arguments)

    x = builder.select(builder.fcmp_ordered("<", x, constant(LOWEST)), constant(LOWEST), x)
    x = builder.select(builder.fcmp_ordered(">", x, constant(HIGHEST)), constant(HIGHEST), x)
    whole = call("floor", call("fmuladd", x, constant(LOG2_E), constant(HALF)))
    r = call("fmuladd", whole, constant(-LN2_LOW), call("fmuladd", whole, constant(-LN2_HIGH), x))
    series = constant(C7)
    for coefficient in (C6, C5, C4, C3, C2, ONE, ONE):
        series = call("fmuladd", series, r, constant(coefficient))
    integers = ir.VectorType(ir.IntType(32), LANES)
    biased = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * LANES))
    return builder.fmul(
        series, builder.bitcast(builder.shl(biased, ir.Constant(integers, [23] * LANES)), VECTOR)
    )


def make_exponentials(gradients: bool):
    """The intrinsic for one row of attention's scores: scores = exp(scores − top) for the places low … high of the row at `at`.

    Returns their sum. With `gradients` also, in the row at `dscores_at` of the same array, d = exp(…) · (d − delta). Whole vectors
    are written: what they hold outside of low … high becomes zero.
    """

    @intrinsic
    def exponentials(context, work, at, low, high, top, dscores_at, delta):
        def generate(context, builder, signature, arguments):
            base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            at, low, high, top, dscores_at, delta = arguments[1:]
            lanes, zeros = ir.Constant(SIZE, LANES), ir.Constant(VECTOR, None)
            places = ir.VectorType(SIZE, LANES)
            total = cgutils.alloca_once_value(builder, zeros)
            top, delta, low_lanes, high_lanes = (
                spread(builder, value) for value in (top, delta, low, high)
            )
            last = builder.sdiv(builder.add(high, ir.Constant(SIZE, LANES - 1)), lanes)
            with cgutils.for_range_slice(
                builder, builder.sdiv(low, lanes), last, ir.Constant(SIZE, 1)
            ) as (index, _):
                start = builder.mul(index, lanes)
                lane = builder.add(spread(builder, start), ir.Constant(places, list(range(LANES))))
                inside = builder.and_(
                    builder.icmp_signed(">=", lane, low_lanes),
                    builder.icmp_signed("<", lane, high_lanes),
                )
                target = builder.bitcast(
                    builder.gep(base, [builder.add(at, start)]), VECTOR.as_pointer()
                )
                value = vector_exp(builder, builder.fsub(builder.load(target, align=4), top))
                value = builder.select(inside, value, zeros)
                builder.store(value, target, align=4)
                if gradients:
                    target = builder.bitcast(
                        builder.gep(base, [builder.add(dscores_at, start)]), VECTOR.as_pointer()
                    )
                    slope = builder.fmul(value, builder.fsub(builder.load(target, align=4), delta))
                    builder.store(builder.select(inside, slope, zeros), target, align=4)
                builder.store(builder.fadd(builder.load(total), value), total)
            reduce = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(FLOAT, [FLOAT, VECTOR]),
                f"llvm.vector.reduce.fadd.v{LANES}f32",
            )
            return builder.call(
                reduce, [ir.Constant(FLOAT, 0.0), builder.load(total)], fastmath=("reassoc",)
            )

        size, number = types.intp, types.float32
        return types.float32(work, size, size, size, number, size, number), generate

    return exponentials


exponentials, score_gradients = (
    make_exponentials(gradients=False),
    make_exponentials(gradients=True),
)


@intrinsic
def largest_of_vectors(context, values, at, vectors):
    """The largest of `vectors` · LANES floats from `at` on; at least one vector."""

    def generate(context, builder, signature, arguments):
        base = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        first = builder.load(
            builder.bitcast(builder.gep(base, [arguments[1]]), VECTOR.as_pointer()), align=4
        )
        top = cgutils.alloca_once_value(builder, first)
        with cgutils.for_range(builder, arguments[2]) as loop:
            place = builder.gep(
                base, [builder.add(arguments[1], builder.mul(loop.index, ir.Constant(SIZE, LANES)))]
            )
            here, before = (
                builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=4),
                builder.load(top),
            )
            builder.store(
                builder.select(builder.fcmp_ordered(">", here, before), here, before), top
            )
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOAT, [VECTOR]), f"llvm.vector.reduce.fmax.v{LANES}f32"
        )
        return builder.call(reduce, [builder.load(top)], fastmath=("nnan",))

    return types.float32(values, types.intp, types.intp), generate


@compiled()
def largest(values, at, count):
    """The largest of `count` ≥ 1 floats from `at` on, none of which is NaN. A plain loop would compare one at a time."""
    vectors = count // LANES
    top = largest_of_vectors(values, at, vectors) if vectors else values[at]
    for i in range(at + vectors * LANES, at + count):
        top = values[i] if values[i] > top else top
    return top


@intrinsic
def weighted_vector(context, out, out_at, values, at, stride, weights, weights_at, count):
    """out[out_at + j] = Σ weights[weights_at + s] · values[at + s · stride + j] over s < count, for LANES values of j."""

    def generate(context, builder, signature, arguments):
        out, values, weights = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data
            for i in (0, 2, 5)
        )
        out_at, at, stride, weights_at, count = (arguments[i] for i in (1, 3, 4, 6, 7))
        total = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, None))
        multiply_add = vector_function(builder, "fmuladd", 3)
        with cgutils.for_range(builder, count) as loop:
            place = builder.gep(values, [builder.add(at, builder.mul(stride, loop.index))])
            weight = spread(
                builder, builder.load(builder.gep(weights, [builder.add(weights_at, loop.index)]))
            )
            value = builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=4)
            builder.store(builder.call(multiply_add, [weight, value, builder.load(total)]), total)
        builder.store(
            builder.load(total),
            builder.bitcast(builder.gep(out, [out_at]), VECTOR.as_pointer()),
            align=4,
        )
        return context.get_dummy_value()

    size = types.intp
    return types.void(out, size, values, size, size, weights, size, size), generate
