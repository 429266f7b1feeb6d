"""New tokens on their way through all blocks: few of them by six launches a layer."""

from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.records import (
    AttentionArrays,
    AttentionForm,
    DecodeStep,
    RmsNorm,
    SwigluForm,
)
from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.arrays import DeviceArray
from nanoeuler.backend.webgpu.products import ProductOps

Array = DeviceArray


class DecodingOps(ProductOps, FusingBackend):
    fused_layers = ((AttentionForm, SwigluForm),)
    fused_tokens = sizes.FEW_ROWS

    def decode_fused(self, step: DecodeStep) -> None:
        for index, form in enumerate(step.forms):
            if isinstance(form, AttentionForm):
                self.attend_new(step, form, index)
            elif isinstance(form, SwigluForm):
                self.gate_new(step, form, index)

    def attend_new(self, step: DecodeStep, form: AttentionForm, index: int) -> None:
        """x ← x + h · attention(norm(x))"""
        x, weights, slots = step.x_ND, step.weights[index], step.slots[index]
        assert slots is not None
        keys, values = slots
        (B, T), H, G, E = step.starts_BT.shape, form.heads, form.kv_heads, form.head_size
        packed = self.kernels.take("packed", (B * T, form.columns), self.activation)
        out = self.kernels.take("attended", (B * T, H * E), self.activation)
        lse = self.kernels.take("lse", (B, H, T))
        self.normed_product(x, (weights.norm, form.epsilon), weights.query_key_value, packed)
        cosines, sines = step.rope_table
        arrays = {"x": packed, "cosines": cosines, "sines": sines, "offset": step.lengths_B}
        arrays |= {"keys": keys, "values": values}
        numbers = {"rows": B * T, "tokens": T, "slots": keys.shape[1], "direction": 1.0}
        numbers |= {"heads": H, "key_heads": G, "half": E // 2}
        numbers |= {"key": form.key.start, "value": form.value.start}
        pairs = B * T * (H + 2 * G) * E // 2
        self.launch_on("rope", "append", pairs, **arrays, **numbers)
        query, attended = (each.reshape(B, T, H, E) for each in (packed[:, form.query], out))
        heads = AttentionArrays(query, keys, values, attended)
        self.attention(heads, step.starts_BT, step.lengths_B, lse)
        self.multiply(out, weights.output, x, form.step_size, x)

    def gate_new(self, step: DecodeStep, form: SwigluForm, index: int) -> None:
        """x ← x + h · down(silu(gate(norm(x))) · up(norm(x)))"""
        x, weights = step.x_ND, step.weights[index]
        hidden = self.kernels.take("hidden", (len(x), form.ffn), self.activation)
        gate, up = (weights.gate_up[part] for part in (form.gate, form.up))
        self.normed_product(x, (weights.norm, form.epsilon), gate, hidden, up)
        self.multiply(hidden, weights.down, x, form.step_size, x)

    def normed_product(
        self,
        x_ND: Array,
        norm: tuple[Array, float],
        right_FD: Array,
        out_NF: Array,
        up_FD: Array | None = None,
    ) -> None:
        """out = norm(x) rightᵀ, or with `up` silu(norm(x) rightᵀ) · (norm(x) upᵀ). `norm` has
        weight and epsilon."""
        if len(x_ND) <= sizes.FEW_ROWS:
            self.multiply_few(x_ND, right_FD, out_NF, norm=norm, up_NK=up_FD)
            return
        normed = self.kernels.take("normed", x_ND.shape, self.activation)
        self.rms_norm(RmsNorm(x_ND, *norm, normed, self.kernels.take("inverse", (len(x_ND),))))
        self.multiply(normed, right_FD, out_NF)
        if up_FD is not None:
            product = self.kernels.take("up", out_NF.shape, self.activation)
            self.multiply(normed, up_FD, product)
            self.swiglu(out_NF, product, out_NF)
