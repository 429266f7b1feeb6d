"""Products with a matrix of small whole numbers, which read its codes and no floats.

A vector x is rounded to 16 bits a number, with a scale for each block of 32, so that a block's sum
of products is one of whole numbers: exact, at the processor's rate for them. It is off by 2⁻¹⁶ of
the largest number in the block at most, which is a hundredth of what rounding the weights to 8 bits
changes. A sum depends on neither the rows nor the tokens that are computed beside it.

The formats are those of `backend/quantized.py`; `codes` and `scales` are a matrix's arrays, the
scales as their bits, since Numba has no float16.
"""

import functools
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from nanoeuler.backend.cpu.simd import (
    FLOAT,
    INT,
    LANES,
    SIZE,
    add_lanes,
    call_vector_function,
    data_pointer,
    largest_lane,
    multiply_add,
    spread,
    sum_of_lanes,
    vector_constant,
    vector_pointer,
)
from nanoeuler.backend.cpu.vectors import prefetch, row_of
from nanoeuler.backend.quantized import Quantized
from nanoeuler.system.compiling import compiled

Array = np.ndarray

BYTE, SHORT = ir.IntType(8), ir.IntType(16)
BLOCK = 32  # of the formats; compiled code takes no constants from other folders
HALF_BLOCK = BLOCK // 2
BLOCK_FLOATS = HALF_BLOCK + 2
"""Room of a rounded block, in floats: its numbers, two in each, its scale, and its offset."""
OFFSET = 8
"""The code of 0 in q4_0."""
SHORTS, INTS = ir.VectorType(SHORT, HALF_BLOCK), ir.VectorType(INT, HALF_BLOCK)
SUMS = 8
"""Lanes of a row's sum; also the blocks whose scales are read together."""
FLOATS, SUM_INTS = ir.VectorType(FLOAT, SUMS), ir.VectorType(INT, SUMS)
HAS_PAIR_SUMS = bool(llvm.get_host_cpu_features().get("avx2"))

LARGEST = np.float32(32767)
SMALLEST = np.float32(1e-30)
"""A block without larger numbers counts as zeros."""
CACHE_LINE = 64
WEIGHT_ROWS = 16
"""Rows of a matrix that are read together: they stay in the first-level cache for all tokens."""
AHEAD = 2048
"""Bytes in front of what is read that the processor is asked to fetch: rows are short, and those of
the next matrix lie behind the last one's."""
TILE = 1 << 18
"""Numbers of a matrix that are made floats at once, for BLAS: they stay in the second-level cache.
"""


def arrays_of(matrix: Quantized) -> tuple[Array, Array]:
    """Codes and scales as the compiled functions take them."""
    return matrix.codes, matrix.scales.view(np.uint16)


def rounded_floats(columns: int, tokens: int) -> int:
    """Floats of scratch memory for so many vectors of `columns` numbers, in `round_rows`."""
    blocks = -(-columns // BLOCK)
    return tokens * (blocks + blocks % 2) * BLOCK_FLOATS + BLOCK


# ---- pieces of generated code


def splat(builder, vector, lane, count=SUMS):
    """A vector with one lane of `vector` in all of its lanes."""
    mask = ir.Constant(ir.VectorType(INT, count), [lane] * count)
    return builder.shuffle_vector(vector, vector, mask)


def lanes_of(builder, vector, lanes):
    """A vector of SUMS lanes, which are those of `vector` that `lanes` name; None: a zero."""
    zeros, zero = ir.Constant(vector.type, None), vector.type.count
    mask = ir.Constant(ir.VectorType(INT, SUMS), [zero if i is None else i for i in lanes])
    return builder.shuffle_vector(vector, zeros, mask)


def pointer_at(builder, base, index, kind):
    """Pointer to a value of the type `kind`, `index` elements behind `base`."""
    return builder.bitcast(builder.gep(base, [index]), kind.as_pointer())


def load_codes(builder, codes, count):
    return builder.load(builder.bitcast(codes, ir.VectorType(BYTE, count).as_pointer()), align=1)


def halves_of_block(builder, is_bytes, codes):
    """The two halves of a block's codes as vectors of 16-bit numbers."""
    if is_bytes:
        behind = builder.gep(codes, [ir.Constant(SIZE, HALF_BLOCK)])
        return [
            builder.sext(load_codes(builder, half, HALF_BLOCK), SHORTS) for half in (codes, behind)
        ]
    pairs = builder.zext(load_codes(builder, codes, HALF_BLOCK), SHORTS)
    four, fifteen = (ir.Constant(SHORTS, [value] * HALF_BLOCK) for value in (4, 15))
    return [builder.and_(pairs, fifteen), builder.lshr(pairs, four)]


def quarters_of_pair(builder, codes, blocks):
    """The codes of a block of q4_0 and the next, or of a block and zeros, in the order of
    `round_block`: four vectors, each with a block in each half."""
    pairs = load_codes(builder, codes, blocks * HALF_BLOCK)
    if blocks == 1:
        zeros = ir.Constant(pairs.type, None)
        both = ir.Constant(ir.VectorType(INT, BLOCK), list(range(BLOCK)))
        pairs = builder.shuffle_vector(pairs, zeros, both)
    words = builder.bitcast(pairs, SHORTS)
    fifteen = ir.Constant(SHORTS, [15] * HALF_BLOCK)
    moved = [
        builder.lshr(words, ir.Constant(SHORTS, [4 * part] * HALF_BLOCK)) if part else words
        for part in range(4)
    ]
    return [*(builder.and_(part, fifteen) for part in moved[:3]), moved[3]]


def floats_of_halves(builder, bits):
    """float16 numbers, given as a vector of integers, as floats.

    With its bits at their places in a float, a float16 number is 2¹¹² times too small, whether it
    is normal or not.
    """
    count = bits.type.count
    integers, floats = ir.VectorType(INT, count), ir.VectorType(FLOAT, count)
    thirteen, kept = (
        ir.Constant(integers, [value] * count) for value in (13, 0x8FFFE000 - (1 << 32))
    )
    moved = builder.shl(builder.sext(bits, integers), thirteen)
    small = builder.bitcast(builder.and_(moved, kept), floats)
    return builder.fmul(small, ir.Constant(floats, [2.0**112] * count))


def pair_sums(builder, left, right):
    """left[2i] · right[2i] + left[2i + 1] · right[2i + 1] of 16-bit numbers, as integers."""
    if HAS_PAIR_SUMS:
        function_type = ir.FunctionType(SUM_INTS, [SHORTS, SHORTS])
        name = "llvm.x86.avx2.pmadd.wd"
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        return builder.call(function, [left, right])
    products = builder.mul(builder.sext(left, INTS), builder.sext(right, INTS))
    even, odd = (ir.Constant(SUM_INTS, list(range(first, HALF_BLOCK, 2))) for first in (0, 1))
    return builder.add(
        builder.shuffle_vector(products, products, even),
        builder.shuffle_vector(products, products, odd),
    )


# ---- rounding vectors


@intrinsic
def round_block(context, codes, x, x_at, rounded, first, block, scales, offsets):
    """Round x[x_at : x_at + 32] to 16-bit numbers, those of `block` of the vector that begins at
    rounded[first]. Their scale goes to rounded[scales + block], and to rounded[offsets + block] −8
    times their sum, which turns a sum of products with codes 0 … 15 into one with numbers −8 … 7.

    For codes of 4 bits, two blocks lie in each other: their numbers 0, 2, …, 14, then 16, 18, …,
    30, then 1, 3, …, 15, then 17, 19, …, 31. That is how the codes come out of their words. A block
    with a number that is not finite has a scale that is NaN.
    """
    is_bytes = codes.dtype == types.int8

    def generate(context, builder, signature, arguments):
        x, rounded = (
            data_pointer(context, builder, signature.args[i], arguments[i]) for i in (1, 3)
        )
        x_at, first, block, scales, offsets = (arguments[i] for i in (2, 4, 5, 6, 7))

        def constant(value):
            return ir.Constant(SIZE, value)

        vectors = [
            builder.load(
                vector_pointer(builder, x, builder.add(x_at, ir.Constant(SIZE, start))), align=4
            )
            for start in range(0, BLOCK, LANES)
        ]
        most = call_vector_function(builder, "fabs", vectors[0])
        differences = builder.fsub(vectors[0], vectors[0])
        for vector in vectors[1:]:
            magnitude = call_vector_function(builder, "fabs", vector)
            larger = builder.fcmp_ordered(">", magnitude, most)
            most = builder.select(larger, magnitude, most)
            differences = builder.fadd(differences, builder.fsub(vector, vector))
        top = largest_lane(builder, most)
        zero = ir.Constant(FLOAT, 0.0)
        poison = sum_of_lanes(builder, differences)
        is_finite = builder.fcmp_ordered("==", poison, zero)
        counts = builder.and_(
            is_finite, builder.fcmp_ordered(">", top, ir.Constant(FLOAT, float(SMALLEST)))
        )
        inverse = builder.select(
            counts, builder.fdiv(ir.Constant(FLOAT, float(LARGEST)), top), zero
        )
        scale = builder.select(
            counts, builder.fdiv(top, ir.Constant(FLOAT, float(LARGEST))), poison
        )
        factor, total = spread(builder, inverse), vector_constant(0)
        shorts = []
        for vector in vectors:
            whole = call_vector_function(builder, "rint", builder.fmul(vector, factor))
            # of NaN, a conversion would be undefined
            whole = builder.select(spread(builder, is_finite), whole, vector_constant(0))
            total = builder.fadd(total, whole)
            integers = builder.fptosi(whole, ir.VectorType(INT, LANES))
            shorts.append(builder.trunc(integers, ir.VectorType(SHORT, LANES)))
        place = builder.add(first, builder.mul(block, constant(HALF_BLOCK)))
        distance = LANES // 2  # in floats
        if not is_bytes:
            is_second = builder.and_(block, constant(1))
            back = builder.mul(is_second, constant(HALF_BLOCK - HALF_BLOCK // 4))
            place, distance = builder.sub(place, back), HALF_BLOCK // 2
            even, odd = (
                ir.Constant(ir.VectorType(INT, 8), list(range(start, HALF_BLOCK, 2)))
                for start in (0, 1)
            )
            shorts = [builder.shuffle_vector(x, x, mask) for mask in (even, odd) for x in shorts]
        for number, vector in enumerate(shorts):
            index = builder.add(place, constant(number * distance))
            builder.store(vector, pointer_at(builder, rounded, index, vector.type), align=4)
        offset = builder.fmul(sum_of_lanes(builder, total), ir.Constant(FLOAT, float(-OFFSET)))
        builder.store(scale, builder.gep(rounded, [builder.add(scales, block)]))
        builder.store(offset, builder.gep(rounded, [builder.add(offsets, block)]))
        return context.get_dummy_value()

    size = types.intp
    return types.void(codes, x, size, rounded, size, size, size, size), generate


@compiled()
def round_rows(codes_OC, x_NI, rounded):
    """Each row's numbers, two in the place of a float, then its scales, then its offsets."""
    N, inputs = x_NI.shape
    whole, blocks = inputs // BLOCK, (inputs + BLOCK - 1) // BLOCK
    room = blocks + blocks % 2
    rest = N * room * BLOCK_FLOATS
    for n in range(N):
        row, first = row_of(x_NI, n), n * room * BLOCK_FLOATS
        scales = first + room * HALF_BLOCK
        offsets = scales + room
        for b in range(whole):
            round_block(codes_OC, row, b * BLOCK, rounded, first, b, scales, offsets)
        if whole < blocks:
            for i in range(BLOCK):
                inside = whole * BLOCK + i < inputs
                rounded[rest + i] = row[whole * BLOCK + i] if inside else np.float32(0)
            round_block(codes_OC, rounded, rest, rounded, first, whole, scales, offsets)


# ---- rows in floats


@intrinsic
def write_block(context, codes, scales, row, block, out, out_at):
    """out[out_at : out_at + 32] = the numbers of a block in floats."""
    is_bytes = codes.dtype == types.int8

    def generate(context, builder, signature, arguments):
        codes, scales, out = (
            data_pointer(context, builder, signature.args[i], arguments[i]) for i in (0, 1, 4)
        )
        row, block, out_at = (arguments[i] for i in (2, 3, 5))
        scale_array = context.make_array(signature.args[1])(context, builder, arguments[1])
        blocks = cgutils.unpack_tuple(builder, scale_array.shape)[1]
        index = builder.add(builder.mul(row, blocks), block)
        block_bytes = ir.Constant(SIZE, BLOCK if is_bytes else HALF_BLOCK)
        bits = builder.load(pointer_at(builder, scales, index, ir.VectorType(SHORT, 1)), align=2)
        scale = splat(builder, floats_of_halves(builder, bits), 0, HALF_BLOCK)
        halves = halves_of_block(
            builder, is_bytes, builder.gep(codes, [builder.mul(index, block_bytes)])
        )
        offset = ir.Constant(SHORTS, [0 if is_bytes else OFFSET] * HALF_BLOCK)
        for start, half in zip((0, HALF_BLOCK), halves, strict=True):
            half = builder.sub(half, offset)
            floats = builder.fmul(builder.sitofp(half, scale.type), scale)
            place = builder.add(out_at, ir.Constant(SIZE, start))
            builder.store(floats, pointer_at(builder, out, place, scale.type), align=4)
        return context.get_dummy_value()

    size = types.intp
    return types.void(codes, scales, size, size, out, size), generate


@compiled()
def dense_row(codes_OC, scales_OB, row, out):
    whole = len(out) // BLOCK
    for b in range(whole):
        write_block(codes_OC, scales_OB, row, b, out, b * BLOCK)
    rest = len(out) - whole * BLOCK
    if rest:
        last = np.empty(BLOCK, np.float32)
        write_block(codes_OC, scales_OB, row, whole, last, 0)
        for i in range(rest):
            out[whole * BLOCK + i] = last[i]


@compiled()
def dense_rows(codes_OC, scales_OB, out_OI, first, stop):
    """out = the rows first … stop of a matrix."""
    for o in range(first, stop):
        dense_row(codes_OC, scales_OB, o, row_of(out_OI, o))


@compiled()
def embedding(ids_N, codes_VC, scales_VB, out_ND, first, stop):
    for n in range(first, stop):
        index = min(max(ids_N[n], 0), len(codes_VC) - 1)
        dense_row(codes_VC, scales_VB, index, row_of(out_ND, n))


# ---- sums along the rows of a matrix


def make_dots(tokens: int) -> Callable[..., None]:
    """The intrinsic for sums along a row of a matrix with a few rounded vectors, for t < `tokens`:

        out[out_at + t · out_stride] = Σ matrix[row, i] · x[token + t, i]

    Sums of a block are exact. They are added up in one order, whatever `tokens`.
    """

    @intrinsic
    def dots(context, codes, scales, row, rounded, token, out, out_at, out_stride):
        is_bytes = codes.dtype == types.int8
        block_bytes = BLOCK if is_bytes else HALF_BLOCK
        together = 1 if is_bytes else 2  # blocks that are multiplied at once

        def generate(context, builder, signature, arguments):
            codes, scales, rounded, out = (
                data_pointer(context, builder, signature.args[i], arguments[i])
                for i in (0, 1, 3, 5)
            )
            row, token, out_at, out_stride = (arguments[i] for i in (2, 4, 6, 7))
            scale_array = context.make_array(signature.args[1])(context, builder, arguments[1])
            blocks = cgutils.unpack_tuple(builder, scale_array.shape)[1]

            def constant(value):
                return ir.Constant(SIZE, value)

            room = builder.add(blocks, builder.and_(blocks, constant(1)))
            token_floats = builder.mul(room, constant(BLOCK_FLOATS))
            row_blocks = builder.mul(row, blocks)
            codes = builder.gep(codes, [builder.mul(row_blocks, constant(block_bytes))])
            scales = builder.gep(scales, [row_blocks])
            numbers = [
                builder.gep(rounded, [builder.mul(builder.add(token, constant(t)), token_floats)])
                for t in range(tokens)
            ]
            behind = builder.mul(room, constant(HALF_BLOCK))
            token_scales = [builder.gep(base, [behind]) for base in numbers]
            token_offsets = [builder.gep(base, [room]) for base in token_scales]
            # two sums take turns, so that a multiply-add need not wait for the one before
            zeros = ir.Constant(FLOATS, None)
            sums = [
                [cgutils.alloca_once_value(builder, zeros) for _ in "ab"] for _ in range(tokens)
            ]

            def add_to(total, factor, value):
                """total += factor · value"""
                builder.store(multiply_add(builder, factor, value, builder.load(total)), total)

            def add(block, count, factors, turn):
                """Add the sums of `count` blocks, 1 or 2, times each token's factors."""
                start = builder.gep(codes, [builder.mul(block, constant(block_bytes))])
                if is_bytes:
                    lefts = halves_of_block(builder, is_bytes, start)
                else:
                    lefts = quarters_of_pair(builder, start, count)
                place = builder.mul(block, constant(HALF_BLOCK))
                for t in range(tokens):
                    parts = []
                    for number, left in enumerate(lefts):
                        index = builder.add(place, constant(number * HALF_BLOCK // 2))
                        right = pointer_at(builder, numbers[t], index, SHORTS)
                        parts.append(pair_sums(builder, left, builder.load(right, align=4)))
                    total = builder.sitofp(functools.reduce(builder.add, parts), FLOATS)
                    add_to(sums[t][turn], factors[t], total)

            def add_blocks(block, count):
                """Add the sums of `count` blocks from `block` on, and what their offsets make."""
                halves, floats = ir.VectorType(SHORT, count), ir.VectorType(FLOAT, count)
                bits = builder.load(pointer_at(builder, scales, block, halves), align=2)
                of_row, factors = floats_of_halves(builder, bits), []
                for t in range(tokens):
                    of_token, offset = (
                        builder.load(pointer_at(builder, base[t], block, floats), align=4)
                        for base in (token_scales, token_offsets)
                    )
                    factors.append(builder.fmul(of_row, of_token))
                    if not is_bytes:
                        lanes = [*range(count), *[None] * (SUMS - count)]
                        add_to(
                            sums[t][0], *(lanes_of(builder, x, lanes) for x in (factors[t], offset))
                        )
                for lane in range(0, count, together):
                    number = min(together, count - lane)
                    second = lane + number - 1 if number == together else None
                    lanes = [lane] * (SUMS // 2) + [second] * (SUMS // 2)
                    spread_factors = [lanes_of(builder, factor, lanes) for factor in factors]
                    turn = lane // together % 2
                    add(builder.add(block, constant(lane)), number, spread_factors, turn)

            done = constant(0)
            for count in (SUMS, 2, 1):
                steps = builder.sdiv(builder.sub(blocks, done), constant(count))
                with cgutils.for_range(builder, steps) as loop:
                    add_blocks(builder.add(done, builder.mul(loop.index, constant(count))), count)
                done = builder.add(done, builder.mul(steps, constant(count)))
            totals = [builder.fadd(*map(builder.load, both)) for both in sums]
            of_all = add_lanes(builder, totals)
            for t in range(tokens):
                place = builder.add(out_at, builder.mul(out_stride, constant(t)))
                value = builder.extract_element(of_all, ir.Constant(INT, t))
                builder.store(value, builder.gep(out, [place]))
            return context.get_dummy_value()

        size = types.intp
        arguments = codes, scales, size, rounded, size, out, size, size
        return types.void(*arguments), generate

    return dots


one_dot, two_dots, four_dots = map(make_dots, (1, 2, 4))


@compiled()
def products(codes_OC, scales_OB, rounded, out_NO, begin, end):
    """out = x Wᵀ for few rows of x, which `round_rows` rounded, and outputs from `begin` to `end`.

    A row's output does not depend on how many rows there are. The matrix is read one row after the
    other, as the processor prefetches.
    """
    row_bytes, (N, outputs) = codes_OC.shape[1], out_NO.shape
    codes, out = codes_OC.reshape(-1), out_NO.reshape(-1)
    for first in range(begin, end, WEIGHT_ROWS):
        stop = min(first + WEIGHT_ROWS, end)
        n = 0
        while n < N:
            at = n * outputs
            tokens = 4 if n + 4 <= N else 2 if n + 2 <= N else 1
            for o in range(first, stop):
                if n == 0:
                    soon = o * row_bytes + AHEAD
                    for line in range(soon, soon + row_bytes, CACHE_LINE):
                        prefetch(codes, line)
                if tokens == 4:
                    four_dots(codes_OC, scales_OB, o, rounded, n, out, at + o, outputs)
                elif tokens == 2:
                    two_dots(codes_OC, scales_OB, o, rounded, n, out, at + o, outputs)
                else:
                    one_dot(codes_OC, scales_OB, o, rounded, n, out, at + o, outputs)
            n += tokens
