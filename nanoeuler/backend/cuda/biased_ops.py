"""The ops of the GPT-2 family on a GPU, which has no kernels for them yet: `check_form` refuses."""

from typing import Any

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, LayerNorm


class BiasedOps(Backend):
    """Biases, learned positions, LayerNorm and GELU."""

    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        raise NotImplementedError

    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        raise NotImplementedError

    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        raise NotImplementedError

    def layer_norm(self, norm: LayerNorm) -> None:
        raise NotImplementedError

    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        raise NotImplementedError

    def layer_norm_backward(
        self,
        dout_ND: Array,
        norm: LayerNorm,
        dx_ND: Array,
        dweight_D: Array,
        dbias_D: Array,
        *,
        add_to_dx: bool,
        accumulate: bool,
        out_ND: Any = None,
    ) -> None:
        raise NotImplementedError

    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        raise NotImplementedError

    def gelu_backward(self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Any = None) -> None:
        raise NotImplementedError
