"""The engine contract: arrays, and the primitive ops of a model and its training.

`reference.py` is the specification: it holds the formula of each op above its code. `ops.py` adds
the ops that are made of these. Capabilities are attributes with defaults, and classes that an
engine derives from (capabilities.py).

Shapes: N rows of tokens (batch × length), B batch, T new tokens per row, S keys per row, D dim,
H query heads, G key/value heads, E head_size, F ffn, V vocabulary, R rows of logits. Weights are
(out, in). A `d` in front of a name means the gradient of the loss with respect to it.

Three rules hold for every op unless its docstring says otherwise:

- Arguments named `out` or `d…` are overwritten in full. Gradients of weights are added to what is
  there when `accumulate` is set.
- No output shares memory with an input.
- An op looks at no value on the host, so that an engine may record it (`Runtime.program`).

Types: `activation` for what products read and write, `residual` for the residual stream, `dtype`
for parameters, gradients, statistics and tables, int32 for ids, positions and offsets.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from nanoeuler.backend.records import (
    Array,
    AttentionArrays,
    BlockForm,
    FlatState,
    LayerNorm,
    LogitRows,
    MatrixGroup,
    MuonConstants,
    NormGradients,
    ParameterRun,
    PreferencePairs,
    RmsNorm,
    RopeTable,
    Rotation,
)
from nanoeuler.backend.runtime import Runtime
from nanoeuler.errors import UserError
from nanoeuler.system import provenance

if TYPE_CHECKING:
    from typing import Self


class DeviceInfo(Protocol):
    """A device, as commands describe it to people."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str | None:
        """On the PCI bus, if it is NVIDIA's and known."""

    @property
    def memory(self) -> int:
        """Bytes in all."""

    @property
    def free_memory(self) -> int:
        """Bytes that are free now."""

    @property
    def shared(self) -> bool:
        """Whether another process of nanoeuler has it, too."""


class Primitives(ABC):
    """Ops that every engine must have, and what it tells about itself."""

    name: ClassVar[str]
    precision: str
    """Arithmetic of products and activations: fp32, tf32, bf16; fp64 of the reference alone. fp16
    is fp32 between activations in float16."""
    dtype: np.dtype
    activation: np.dtype
    residual: np.dtype

    # ---- capabilities

    device: DeviceInfo | None = None
    """The device; None where arrays are the host's."""

    candidate: str | None = None
    """Hash of the file whose ops stand in for the specification's: see `nanoeuler/lessons`."""

    runtime = Runtime()
    """How its work is repeated, fed, shared and waited for."""

    algorithms: dict[str, str]
    """Algorithms chosen by measuring. A run that is to give the same bits needs the same ones."""

    check_tokens = 40
    """Tokens of a micro-batch for which the kernels compute that training takes."""

    check_multiple = 1
    """The rows of that micro-batch are a multiple of it."""

    peak_flops: float | None = None
    """Operations per second that the device can do; None where nobody says."""

    logits_at_once = 1 << 28
    """Elements of the largest buffer of logits: the heads take the tokens in parts beyond it."""

    scored_logits_at_once = 1 << 22
    """Logit-buffer limit for scoring a text: 16 MB in float32, which fit a processor's cache."""

    least_logit_tokens = 1
    """Fewest tokens of such a part, even where they take more."""

    reads_codes = False
    """May the weight of a product or an embedding be `Quantized`, where it is not trained?"""

    loss_scale = 1.0
    """What gradients are multiplied by from the logits on until the update, a power of 2: so that
    small ones are numbers of 16 bits, too (Micikevicius et al. 2018)."""

    halves_weights = False
    """Are matrices of a model that is used, and not trained, kept in float16?"""

    keeps_caches = False
    """Is the memory of caches that are gone kept for the next ones of their shapes?"""

    drafted_tokens = 8
    """Tokens of the longest pass over a token and its drafts. An engine that can promise it is
    batch-invariant up to this many tokens.
    """

    draft_cost = 0.2
    """Cost of each draft as a share of a decoded token's, measured by `benchmarks/speculation.py`.
    It decides how many drafts a pass takes.
    """

    @abstractmethod
    def activation_budget(self, state_bytes: int) -> int:
        """Bytes that the activations of all replicas may take, beside a training state.

        A function of the machine's size, not of what is free now, so that a rerun computes the
        same bits.
        """

    def workspace_bytes(self, heads: int, length: int) -> int:
        """Bytes that the ops themselves take for each row of a micro-batch."""
        return 0

    def check_form(self, form: BlockForm, dim: int) -> None:  # noqa: B027 (optional)
        """Raise `UserError` for a block that this engine cannot compute."""

    def as_for(self, elements: int) -> "Self":
        """An engine that computes any model in the way of one of that many parameters."""
        return self

    def for_any_processor(self, key: str) -> "Self":
        """An engine whose results have the same bits on any processor of its kind.

        Raises `UserError`, which begins with the `key` that asks for it, where that can't be
        promised.
        """
        raise UserError(f"{key}: chip is for --device cpu: {self.own_rounding}; take ranks")

    own_rounding: ClassVar[str]
    """Why other devices of its kind round otherwise, in a clause."""

    orders_sums: ClassVar[bool] = True
    """Can a step's sums have one order for any number of ranks?"""

    checked_precisions: ClassVar[tuple[str, ...]] = ("fp32",)
    """Those that are compared with the specification, where the device has them."""

    @property
    def device_name(self) -> str:
        """The name of the device that computes, a GPU's or the processor's."""
        return self.device.name if self.device else provenance.cpu_name()

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Everything about the engine that must be the same for the same bits."""

    # ---- arrays

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """An array of `dtype` (default: the engine's). Raises `MemoryError`."""

    @abstractmethod
    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """An array of zeros, like `empty`."""

    @abstractmethod
    def from_host(self, array: np.ndarray, dtype: Any = None) -> Array:
        """A NumPy array as this engine's; floats take the engine's type unless told otherwise."""

    @abstractmethod
    def to_host(self, array: Array) -> np.ndarray:
        """An array of this engine as NumPy's; floats of 16 bits become float32."""

    def working_copy(self, parameters: Array) -> Array:
        """The parameters in the type that products read: an array of its own where types differ."""
        return parameters

    def refresh(self, working: Array, parameters: Array) -> None:  # noqa: B027 (optional)
        """Bring a working copy up to date after `parameters` were written otherwise than by an
        update op."""

    # ---- matrix products

    @abstractmethod
    def linear(self, x_NI: Array, weight_OI: Array, out_NO: Array) -> None:
        """out = x Wᵀ"""

    @abstractmethod
    def linear_backward_input(
        self, dout_NO: Array, weight_OI: Array, dx_NI: Array, scale: float = 1.0
    ) -> None:
        """dx = scale · dout W"""

    @abstractmethod
    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        """dW = scale · doutᵀ x"""

    @abstractmethod
    def add_product(self, x_NR: Array, weight_RO: Array, out_NO: Array, scale: float) -> None:
        """out += scale · x W"""

    def dropout(self, x_NI: Array, seeds_N: Array, salt: int, share: float, out_NI: Array) -> None:
        """out = x, but 0 where a hash of row's seed, salt and column says so: in about `share`.

        `out` may be the array of x. An engine without it refuses such forms (`check_form`).
        """
        raise NotImplementedError

    # ---- biases

    @abstractmethod
    def add_bias(self, out_NO: Array, bias_O: Array) -> None:
        """out[n] += bias"""

    @abstractmethod
    def bias_backward(
        self, dout_NO: Array, dbias_O: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        """dbias = scale · Σₙ dout[n]"""

    # ---- embedding

    @abstractmethod
    def scale(self, x_ND: Array, factor: float) -> None:
        """x = factor · x, of the residual stream or its gradient."""

    @abstractmethod
    def embedding(self, ids_N: Array, table_VD: Array, out_ND: Array) -> None:
        """out[n] = table[ids[n]]"""

    @abstractmethod
    def embedding_backward(
        self, ids_N: Array, dout_ND: Array, dtable_VD: Array, *, accumulate: bool
    ) -> None:
        """dtable[v] = Σ of dout[n] over the n with ids[n] = v, summed in the order of n."""

    @abstractmethod
    def embedding_at(
        self,
        ids_N: Array,
        table_VD: Array,
        positions_N: Array,
        position_table_PD: Array,
        out_ND: Array,
    ) -> None:
        """out[n] = table[ids[n]] + position_table[positions[n]]

        A position beyond its table, as of a draft that nobody will keep, takes the last row. The
        gradients are those of two embeddings.
        """

    @abstractmethod
    def gather(
        self, x_ND: Array, index_R: np.ndarray | Array, out_RD: Array | None = None
    ) -> Array:
        """Some rows of x, in `out` or a new array; `index` is NumPy's or the engine's."""

    # ---- norms and Euler steps

    @abstractmethod
    def layer_norm(self, norm: LayerNorm) -> None:
        """out = w · (x − m) / r + bias, inverse_rms = 1 / r

        m = mean(x), r = √(mean((x − m)²) + ε)
        """

    @abstractmethod
    def add_layer_norm(
        self, x_ND: Array, delta_ND: Array, bias_D: Array, step_size: float, norm: LayerNorm
    ) -> None:
        """norm.x = x + step_size · (delta + bias), then the norm itself."""

    @abstractmethod
    def layer_norm_backward(self, dout_ND: Array, norm: LayerNorm, into: NormGradients) -> None:
        """Gradients of `layer_norm`, as in `rms_norm_backward`."""

    @abstractmethod
    def rms_norm(self, norm: RmsNorm) -> None:
        """out = w · x / r, inverse_rms = 1 / r, r = √(mean(x²) + ε)"""

    @abstractmethod
    def add_rms_norm(self, x_ND: Array, delta_ND: Array, step_size: float, norm: RmsNorm) -> None:
        """norm.x = x + step_size · delta, then the norm itself."""

    @abstractmethod
    def rms_norm_backward(self, dout_ND: Array, norm: RmsNorm, into: NormGradients) -> None:
        """Gradients of `rms_norm`, and with `into.out` its output again, so that nobody keeps it.

        `norm.out` is neither read nor written.
        """

    # ---- rotary positions

    @abstractmethod
    def rope(
        self, x_NHE: Array, positions_N: Array, table: RopeTable, *, inverse: bool = False
    ) -> None:
        """Rotate each pair x[i], x[i + E/2] in place by φ[i], or by −φ[i]: the backward pass."""

    # ---- attention

    @abstractmethod
    def attention(
        self, heads: AttentionArrays, starts_BT: Array, offset_B: Array, lse_BHT: Array
    ) -> None:
        """out = softmax(q kᵀ / √E) v, causal, and the log-sum-exp of the scores.

        With `heads.cap`, cap · tanh(score / cap) stands in the place of each score.

        There may be more keys than queries: those of a cache, (B, S, G, E) like the values.
        Query i of row b sits at key position offset[b] + i. It sees the keys from starts[b, i] up
        to itself.
        """

    @abstractmethod
    def attention_backward(
        self,
        saved: AttentionArrays,
        gradients: AttentionArrays,
        starts_BT: Array,
        lse_BHT: Array,
        rotation: Rotation | None = None,
    ) -> None:
        """From `gradients.out` to the gradients of query, key and value; all offsets are 0.

        `rotation`: that by which `rope` had rotated queries and keys. Their gradients are rotated
        back.
        """

    @abstractmethod
    def write_cache(self, cache_BSGE: Array, new_BTGE: Array, offset_B: Array) -> Array:
        """cache[b, offset[b] + i] = new[b, i], if that is a slot. Returns what attention reads."""

    @abstractmethod
    def window_starts(
        self, starts_BT: Array, offset_B: Array, window: int, last: int, out_BT: Array
    ) -> None:
        """The first slot that each token sees through a sliding window, in its document.

        out[b, i] = max(starts[b, i], offset[b] + i − window + 1), and at most `last`, the last slot
        that there is.
        """

    # ---- SwiGLU

    @abstractmethod
    def swiglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        """out = silu(gate) · up"""

    @abstractmethod
    def swiglu_backward(
        self,
        dout_NF: Array,
        gate_NF: Array,
        up_NF: Array,
        dgate_NF: Array,
        dup_NF: Array,
        out_NF: Array | None = None,
    ) -> None:
        """Gradients of `swiglu`; with `out`, the output is recomputed.

        dgate may be the array of gate, dup that of up, and out that of dout.
        """

    # ---- GEGLU

    @abstractmethod
    def geglu(self, gate_NF: Array, up_NF: Array, out_NF: Array) -> None:
        """out = gelu(gate) · up"""

    @abstractmethod
    def geglu_backward(
        self, dout_NF: Array, gate_NF: Array, up_NF: Array, dgate_NF: Array, dup_NF: Array
    ) -> None:
        """Gradients of `geglu`, whose output takes the place of dout.

        dgate may be the array of gate, and dup that of up.
        """

    # ---- GELU

    @abstractmethod
    def gelu(self, x_NF: Array, out_NF: Array) -> None:
        """out = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2"""

    @abstractmethod
    def gelu_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        """The gradient of `gelu`; with `out`, the output is recomputed.

        dx may be the array of x, and out that of dout.
        """

    # ---- ReLU²

    @abstractmethod
    def relu2(self, x_NF: Array, out_NF: Array) -> None:
        """out = max(x, 0)²"""

    @abstractmethod
    def relu2_backward(
        self, dout_NF: Array, x_NF: Array, dx_NF: Array, out_NF: Array | None = None
    ) -> None:
        """The gradient of `relu2`; with `out`, the output is recomputed.

        dx may be the array of x, and out that of dout.
        """

    # ---- soft caps

    @abstractmethod
    def soft_cap(self, x_NV: Array, cap: float, slope_NV: Array | None = None) -> None:
        """x = cap · tanh(x / cap) in place, and in `slope` the derivative, 1 − tanh²(x / cap)."""

    @abstractmethod
    def soft_cap_backward(self, dx_NV: Array, slope_NV: Array) -> None:
        """dx = slope · dx"""

    # ---- losses

    @abstractmethod
    def cross_entropy(self, rows: LogitRows) -> None:
        """logprobs = logit of the target − lse, lse = log Σ exp(logits).

        A target of −1 has log-probability 0 and no gradient.
        """

    @abstractmethod
    def cross_entropy_backward(self, rows: LogitRows) -> None:
        """The logits become `loss_scale` times the gradient of the loss −Σ weights · logprobs, by
        weights and lse."""

    @abstractmethod
    def add_losses(self, logprobs_NK: Array, weights_NK: Array, losses_2: Array) -> None:
        """Add −Σ weights · logprobs, of all heads and of head 0, to `losses` (float64)."""

    @abstractmethod
    def preference(
        self,
        logprobs_RTK: Array,
        pairs: PreferencePairs,
        margin: float,
        smoothing: float,
        weights_RTK: Array,
        losses_2: Array,
    ) -> None:
        """The weights of head 0 by which −Σ weights · logprobs descends the preference loss.

        Weights outside of the pairs stay as they are. The loss is added to both `losses`.
        """

    # ---- decoding

    @abstractmethod
    def argmax(self, logits_RV: Array) -> Array:
        """The likeliest id of each row, as a new array; ties go to the lowest id."""

    # ---- optimizer

    @abstractmethod
    def squares(self, values: Array) -> Array:
        """Partial sums of values², float64: always as many, in an array that the next call uses
        again."""

    def squares_of_cells(self, values: Array, cells: Sequence[slice], sums: Array) -> None:
        """sums ← Σ values² of each of the cells, float64: the same bits whatever else there is."""
        for number, cell in enumerate(cells):
            sums[number] = self.squares(values[cell]).sum()

    @abstractmethod
    def begin_update(
        self, squares: Array, schedule_2: Array, losses_2: Array, report_2: Array, clip_norm: float
    ) -> Array:
        """Scalars of an update, for the update ops, (4,) float64.

        Whether to move at all, the factor by which the gradient's norm is clipped, the learning
        rate, and the update's number from 1.

        `squares` are those of the whole gradient, times `loss_scale`². `schedule` (float64) holds
        the learning rate and the number of updates done. `report` (float64) receives the gradient's
        norm before clipping, and in its second slot counts the updates left out: the update ops do
        nothing when loss or norm are not finite.
        """

    @abstractmethod
    def move(
        self,
        rule: str,
        flat: FlatState,
        tensors: Sequence[Array],
        runs: Sequence[ParameterRun],
        constants: Sequence[float],
        scalars: Array,
    ) -> None:
        """One update of each element by itself, with the gradient clipped.

        A `rule` of the name x is the function x_run of the reference, which also says what
        `tensors` and `constants` are. `flat.working` follows the parameters. What no run covers
        stays.
        """

    @abstractmethod
    def muon(
        self,
        flat: FlatState,
        momentum: Array,
        groups: Sequence[MatrixGroup],
        constants: MuonConstants,
        scalars: Array,
    ) -> None:
        """One step of Muon on the matrices of `groups`. `flat.working` follows the parameters."""
