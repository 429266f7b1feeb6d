"""Destinations of the e4m3 copies in an fp8 step, and the products that read them."""

from typing import TYPE_CHECKING, TypeAlias

from nanoeuler.backend.cuda.fp8 import NOT_QUANTIZED, Quantized
from nanoeuler.backend.cuda.fused_linear import Factors
from nanoeuler.backend.cuda.kernel_sources import TRANSPOSED_MULTIPLE, transposed_tokens
from nanoeuler.backend.cuda.parts import CudaParts
from nanoeuler.backend.records import Array

if TYPE_CHECKING:
    pass

MlpCopies: TypeAlias = tuple[Quantized, Quantized, Quantized]


class QuantizedOps(CudaParts):
    """Products, in e4m3 where both factors are, and the copies of ops by family."""

    def copy_of(
        self, kind: str, array: Array, *, wide: bool = False, in_place: bool = False
    ) -> Quantized:
        """Destination of the e4m3 copy of a result that a product will read."""
        if self.fp8 is None or not self.fp8.active:
            return NOT_QUANTIZED
        return self.fp8.output(kind, array, wide=wide, in_place=in_place)

    def copies_of_norm(self, out_ND: Array, weight_D: Array) -> tuple[Array | None, Quantized]:
        """Destination of a norm's output, None where only its copy is read, and the copy."""
        copy = self.copy_of("norm", out_ND)
        spared = self.fp8 and copy.values is not None and self.fp8.spares(weight_D)
        return None if spared else out_ND, copy

    def copies_of_dx(
        self, dx_ND: Array, out_ND: Array | None
    ) -> tuple[Array | None, tuple[Array | None, ...], int]:
        """Extra outputs of a norm's backward pass, and its bytes of shared memory.

        First the destination of its recomputed output, or None. Then the copy of dx, the
        destination of a transposed copy, and if that is the output's, its slot.
        """
        turns = dx_ND.shape[1] % TRANSPOSED_MULTIPLE == 0
        copy = self.copy_of("dx", dx_ND) if turns else NOT_QUANTIZED
        if self.fp8 is None or copy.values is None:
            return out_ND, (None,) * 4, 0
        across, out_slot = None, None
        if self.fp8.awaits_input and out_ND is not None:
            across, out_slot = self.fp8.transposed_output("normed", out_ND)
            out_ND = None if self.fp8.ready else out_ND
        else:
            across, _ = self.fp8.transposed_output("dx transposed", dx_ND, copy.slot)
        self.fp8.awaits_input = False
        width = dx_ND.shape[1]
        return out_ND, (*copy, across, out_slot), transposed_tokens(width) * width

    def copies_of_mlp(
        self, kind: str, packed_NO: Array, out_NF: Array, dx_ND: Array, weight_DF: Array
    ) -> tuple[Factors | None, MlpCopies] | None:
        """Operands of the first product of an MLP's backward pass, and destinations of its copies:
        the gradient of `packed`, that transposed (tokens last), and `out` transposed.

        None where the pass is in bfloat16. Without factors it notes magnitudes alone.
        """
        fp8 = self.fp8
        if fp8 is None or not fp8.turns(dx_ND, weight_DF):
            return None
        factors = self.factors(dx_ND, weight_DF, across=True)
        copy = self.copy_of(kind, packed_NO, wide=True)
        if copy.values is None:
            return None
        across = fp8.transposed_output(f"{kind} transposed", packed_NO, copy.slot)
        hidden = fp8.transposed_output("hidden again", out_NF, in_place=True)
        fp8.awaits_input = True
        return factors, (copy, across, hidden)

    def measure(self, array: Array, copy: Quantized) -> None:
        """Note the magnitudes of what a kernel wrote in bfloat16 for a copy to come."""
        if self.fp8 and copy.values is not None:
            self.fp8.measure(array, copy)

    def factors(self, x_NI: Array, weight: Array, *, across: bool = False) -> Factors | None:
        """The factors of x Wᵀ, or with `across` of x W, where both are there in e4m3."""
        return self.fp8.operands(x_NI, weight, across=across) if self.fp8 else None

    def transposed_factors(self, dout_NO: Array, x_NI: Array) -> Factors | None:
        """The factors of doutᵀ x, where both are there with the tokens last."""
        return self.fp8.transposed_operands(dout_NO, x_NI) if self.fp8 else None

    def multiply_rows(
        self,
        x_NI: Array,
        weight: Array,
        out_NO: Array,
        scale: float = 1.0,
        add: Array | None = None,
        *,
        across: bool = False,
    ) -> None:
        """out = scale · x Wᵀ + add, or scale · x W + add with `across`."""
        factors = self.factors(x_NI, weight, across=across)
        if factors is None:
            self.products.multiply(x_NI, False, weight, not across, out_NO, scale, add)
        else:
            self.multiply_e4m3(factors, out_NO, scale, add)

    def multiply_e4m3(self, factors: Factors, out: Array, scale: float, add: Array | None) -> None:
        """out = scale · left rightᵀ + add"""
        left, right = factors
        operands = left.values, False, right.values, True
        self.products.multiply(*operands, out, scale, add, inverses=inverses(factors))

    def multiply_biased(
        self,
        x_NI: Array,
        weight_OI: Array,
        out_NO: Array,
        bias_O: Array,
        add_NO: Array | None = None,
    ) -> bool:
        """out = x Wᵀ + bias + add; False where the library does not do it at once."""
        factors = self.factors(x_NI, weight_OI)
        left, right = (factor.values for factor in factors) if factors else (x_NI, weight_OI)
        more = {"add_NO": add_NO, "inverses": inverses(factors) if factors else None}
        return self.products.multiply_biased(left, right, out_NO, bias_O, **more)

    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        self.multiply_rows(x_NI, weight_OI, out_NO)

    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        self.multiply_rows(dout_NO, weight_OI, dx_NI, scale, across=True)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        add = dweight_OI if accumulate else None
        factors = self.transposed_factors(dout_NO, x_NI)
        if factors is None:
            self.products.multiply(dout_NO, True, x_NI, False, dweight_OI, scale, add)
        else:
            self.multiply_e4m3(factors, dweight_OI, scale, add)


def inverses(factors: Factors) -> tuple[int, int]:
    """Addresses of what the factors are multiplied by."""
    left, right = factors
    return left.slot.data.ptr, right.slot.data.ptr
