"""The base class of all engines: the ops that are made of primitives.

Each has a name of its own so that an engine can compute it at once. An engine overrides it only to
be faster. Names, shapes and rules are those of `primitives.py`.
"""

from functools import cached_property

import numpy as np

from nanoeuler.backend.primitives import Primitives
from nanoeuler.backend.records import (
    Array,
    EulerStep,
    GateUp,
    HeadNorm,
    LayerNorm,
    LogitRows,
    Norm,
    NormGradients,
    RmsNorm,
    RopeTable,
    Rotation,
)


class Backend(Primitives):
    """An engine: its arrays, its ops, and what it can do."""

    # ---- biases

    def linear_bias(self, x_NI: Array, weight_OI: Array, bias_O: Array, out_NO: Array) -> None:
        """out = x Wᵀ + bias"""
        self.linear(x_NI, weight_OI, out_NO)
        self.add_bias(out_NO, bias_O)

    def linear_bias_backward(
        self,
        dout_NO: Array,
        x_NI: Array,
        dweight_OI: Array,
        dbias_O: Array,
        *,
        accumulate: bool,
        scale: float = 1,
    ) -> None:
        """The gradients of weight and bias, of scale · (x Wᵀ + bias)."""
        self.linear_backward_weight(dout_NO, x_NI, dweight_OI, accumulate=accumulate, scale=scale)
        self.bias_backward(dout_NO, dbias_O, accumulate=accumulate, scale=scale)

    # ---- norms and Euler steps

    def norm(self, norm: Norm) -> None:
        """The norm of the stream at one point, of whichever kind."""
        if isinstance(norm, LayerNorm):
            self.layer_norm(norm)
        else:
            self.rms_norm(norm)

    def norm_backward(self, dout_ND: Array, norm: Norm, into: NormGradients) -> None:
        """`rms_norm_backward` or `layer_norm_backward`; gradients that are None are not wanted."""
        if into.dweight_D is None:  # of a norm that is frozen
            size = norm.weight_D.size
            unused = self.unused_gradient(size), self.constant("unused bias", np.zeros(size))
            into = into._replace(dweight_D=unused[0], dbias_D=unused[1], accumulate=False)
        if isinstance(norm, LayerNorm):
            self.layer_norm_backward(dout_ND, norm, into)
        else:
            self.rms_norm_backward(dout_ND, norm, into)

    def euler_step(self, inner_NI: Array, weight_DI: Array, step: EulerStep) -> None:
        """A block's last product, inner Wᵀ, with its step and the norm behind it."""
        x, delta, step_size, norm, bias = step
        self.linear(inner_NI, weight_DI, delta)
        if isinstance(norm, LayerNorm):
            self.add_layer_norm(x, delta, bias, step_size, norm)
        else:
            self.add_rms_norm(x, delta, step_size, norm)

    def head_norm(self, x_NHE: Array, norm: HeadNorm) -> None:
        """x = weight · x / r of every head in place, r = √(mean(x²) + ε) over the head."""
        E = x_NHE.shape[-1]
        norm.raw_NHE[...] = x_NHE
        self.rms_norm(self.norm_of_heads(norm, E))
        x_NHE[...] = norm.scratch_NHE

    def head_norm_backward(
        self, dx_NHE: Array, norm: HeadNorm, dweight_E: Array | None, *, accumulate: bool
    ) -> None:
        """From the gradient of `head_norm`'s output to that of its input, in place."""
        E = dx_NHE.shape[-1]
        norm.scratch_NHE[...] = dx_NHE
        dweight_E = self.unused_gradient(E) if dweight_E is None else dweight_E
        into = NormGradients(norm.dscratch_NHE.reshape(-1, E), dweight_E, accumulate=accumulate)
        self.rms_norm_backward(norm.scratch_NHE.reshape(-1, E), self.norm_of_heads(norm, E), into)
        dx_NHE[...] = norm.dscratch_NHE

    def norm_of_heads(self, norm: HeadNorm, size: int) -> RmsNorm:
        """The norm of all heads as rows, from `raw` to `scratch`."""
        x, out = (array.reshape(-1, size) for array in (norm.raw_NHE, norm.scratch_NHE))
        weight = self.weight_or_ones(norm.weight_E, size)
        return RmsNorm(x, weight, norm.epsilon, out, norm.inverse_rms_NH.reshape(-1))

    def weight_or_ones(self, weight_E: Array | None, size: int) -> Array:
        """A norm's weight, or the weight of a norm that has none."""
        return self.constant("ones", np.ones(size)) if weight_E is None else weight_E

    def unused_gradient(self, size: int) -> Array:
        """Scratch for the gradient of a norm without weight."""
        return self.constant("unused gradient", np.zeros(size))

    def constant(self, purpose: str, values: np.ndarray) -> Array:
        """`values` on the engine: made once for each purpose and size."""
        key = purpose, values.size
        if key not in self.constants:
            self.constants[key] = self.from_host(values)
        return self.constants[key]

    @cached_property
    def constants(self) -> dict[tuple[str, int], Array]:
        """The arrays of `constant`. They stay, since a recorded program holds their addresses."""
        return {}

    # ---- rotary positions

    def rope_table(
        self,
        positions: int,
        head_size: int,
        theta: float,
        scale_I: np.ndarray | float = 1.0,
        factor: float = 1.0,
    ) -> RopeTable:
        """cos φ and sin φ, φ = position · θ^(−2i/E), each (positions, E / 2).

        With scaled positions, φ has the factor scale[i], and cosines and sines have `factor`.
        """
        frequencies = scale_I * theta ** (-np.arange(0, head_size, 2) / head_size)
        angles = np.arange(positions)[:, None] * frequencies
        return self.from_host(factor * np.cos(angles)), self.from_host(factor * np.sin(angles))

    def linear_rope(
        self, x_NI: Array, weight_OI: Array, out_NO: Array, rotated: list[Array], by: Rotation
    ) -> None:
        """out = x Wᵀ, then `rope` on parts of it, which are views (N, H, E) of `out`."""
        self.linear(x_NI, weight_OI, out_NO)
        for part in rotated:
            self.rope(part, *by)

    # ---- SwiGLU

    def linear_swiglu(self, x_NI: Array, weight_OI: Array, product: GateUp, out_NF: Array) -> None:
        """product.packed = x Wᵀ, out = swiglu of its columns `gate` and `up`."""
        self.linear(x_NI, weight_OI, product.packed_NO)
        self.swiglu(*product.parts, out_NF)

    def linear_swiglu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, product: GateUp, out_NF: Array
    ) -> None:
        """From the gradient of scale · out Wᵀ to those of gate and up, which replace them.

        `out` receives swiglu's output again.
        """
        self.linear_backward_input(dx_ND, weight_DF, out_NF, scale)
        self.swiglu_backward(out_NF, *product.parts, *product.parts, out_NF)

    # ---- GELU

    def linear_gelu(
        self, x_NI: Array, weight_FI: Array, bias_F: Array, up_NF: Array, out_NF: Array
    ) -> None:
        """up = x Wᵀ + bias, out = gelu(up)"""
        self.linear_bias(x_NI, weight_FI, bias_F, up_NF)
        self.gelu(up_NF, out_NF)

    def linear_gelu_backward(
        self, dx_ND: Array, weight_DF: Array, scale: float, up_NF: Array, out_NF: Array
    ) -> None:
        """From the gradient of scale · out Wᵀ to that of up, which replaces it.

        `out` receives gelu's output again.
        """
        self.linear_backward_input(dx_ND, weight_DF, out_NF, scale)
        self.gelu_backward(out_NF, up_NF, up_NF, out_NF)

    # ---- losses

    def cross_entropy_with_gradient(self, rows: LogitRows) -> None:
        """Both, for weights that are known beforehand."""
        self.cross_entropy(rows)
        self.cross_entropy_backward(rows)

    def few_targets(self, targets_NK: Array) -> Array | None:
        """Indices of the tokens that have a target, where the heads should take those alone.

        None: the heads take all tokens. Only an engine that may look at values answers otherwise.
        """
        return None

    # ---- decoding

    def head_logits(self, normed_ND: Array, weight_VD: Array, out_NV: Array) -> None:
        """`linear` with the weight of a head, for a model that is used and not trained."""
        self.linear(normed_ND, weight_VD, out_NV)

    def next_logits(self, norm: Norm, weight_VD: Array, out_BV: Array) -> None:
        """Logits behind the last block: the final norm and the product with a head."""
        self.norm(norm)
        self.linear(norm.out_ND, weight_VD, out_BV)
