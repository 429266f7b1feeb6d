"""Ops of the forms that released models vary, as the specification."""

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array


class FormOps(Backend):
    """Sliding windows, GEGLU, soft caps."""

    def window_starts(
        self, starts_BT: Array, offset_B: Array, window: int, last: int, out_BT: Array
    ) -> None:
        slots_BT = offset_B[:, None] + np.arange(starts_BT.shape[1])
        np.minimum(np.maximum(starts_BT, slots_BT - window + 1), last, out=out_BT, casting="unsafe")

    # ---- GEGLU (Shazeer 2020, eq. 6):  out = gelu(gate) · up

    def geglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        self.gelu(gate_NF, out_NF)
        out_NF *= up_NF

    def geglu_backward(
        self, dout_NF: Array, gate_NF: Array, up_NF: Array, dgate_NF: Array, dup_NF: Array
    ) -> None:
        """dup = dout · gelu(gate),  dgate = dout · up · gelu′(gate)"""
        dgelu, gelu = dout_NF * up_NF, np.empty_like(dout_NF)
        self.gelu_backward(dgelu, gate_NF, dgelu, gelu)
        dup = dout_NF * gelu
        np.multiply(gelu, up_NF, out=dout_NF)
        dgate_NF[...] = dgelu
        dup_NF[...] = dup

    # ---- soft caps (Gemma 2, 2024, section 2):  x = cap · tanh(x / cap)

    def soft_cap(self, x_NV: Array, cap: float, slope_NV: Array | None = None) -> None:
        x_NV /= cap
        np.tanh(x_NV, out=x_NV)
        if slope_NV is not None:
            np.subtract(1, x_NV * x_NV, out=slope_NV)
        x_NV *= cap

    def soft_cap_backward(self, dx_NV: Array, slope_NV: Array) -> None:
        dx_NV *= slope_NV
