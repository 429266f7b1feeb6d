"""Parts of the GPU engine, its arrays and products, on which the files of its ops build."""

from typing import Any, TypeAlias

import cupy
import ml_dtypes
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.attention import Attention
from nanoeuler.backend.cuda.cublaslt import CublasLt
from nanoeuler.backend.cuda.device import Device, peak_flops
from nanoeuler.backend.cuda.fp8 import (
    MULTIPLE,
    NOT_QUANTIZED,
    WORTH_QUANTIZING,
    Fp8,
    Quantized,
    check_capability,
)
from nanoeuler.backend.cuda.fused_linear import WORTH_FUSING, Factors, FusedLinear
from nanoeuler.backend.cuda.kernel_sources import (
    ELEMENTWISE_THREADS,
    TRANSPOSED_MULTIPLE,
    WIDTH,
    KernelSources,
    transposed_tokens,
)
from nanoeuler.backend.cuda.kernels import Argument, Kernels, Source, blocks
from nanoeuler.backend.cuda.prompts import Prompts
from nanoeuler.backend.cuda.runtime import CudaRuntime
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.ops import Backend

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)

MlpCopies: TypeAlias = tuple[Quantized, Quantized, Quantized]


class CudaParts(Backend):
    """Device, kernels, memory between kernels, arrays; products, in e4m3 where both factors are."""

    device: Device

    def __init__(
        self,
        precision: str = "bf16",
        residual: str = "bf16",
        graphs: bool = True,
        portable: bool = False,
    ):
        """`residual`: the residual stream's type in the bf16 mode, bf16 or fp32. `graphs`: replay
        programs as CUDA graphs.

        `portable`: only those of our kernels that run from compute capability 8.0 up, as on a
        smaller card; cuBLASLt still takes what the device has.
        """
        self.device = Device()
        self.precision = precision
        if precision == "fp8":
            check_capability(self.device.name, self.device.capability)
        self.form = "bf16" if precision == "fp8" else precision
        """Number format of all that is not computed in fp8."""
        self.dtype = FLOAT32
        self.activation = BFLOAT16 if self.form == "bf16" else FLOAT32
        self.residual = BFLOAT16 if self.form == "bf16" and residual == "bf16" else FLOAT32
        self.peak_flops = peak_flops(self.device.name, precision)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.sources = KernelSources(self.activation.name, self.residual.name)
        self.kernels = Kernels(self.stream, self.device.capability)
        self.launch = self.kernels.launch
        self.scratch = Scratch(lambda count: allocate((count,), np.uint8))
        self.products = CublasLt(precision, self.stream, f"{self.device.name} {precision}")
        self.algorithms = self.products.algorithms
        self.portable = portable
        hopper = self.form == "bf16" and self.kernels.hopper and not portable
        self.fused = FusedLinear(self.kernels, self.device.multiprocessors) if hopper else None
        self.has_clusters = hopper
        """Do kernels for a chip with clusters run, in bf16?"""
        if self.fused:
            self.check_tokens = WORTH_FUSING
        self.kept_rates: dict[tuple[tuple[int, int, bool, float], ...], Array] = {}
        self.fp8: Fp8 | None = None
        if precision == "fp8":
            arrays = self.zeros, self.from_host, self.to_host
            self.fp8 = Fp8(self.kernels, self.sources, self.scratch, *arrays)
            self.check_tokens, self.check_multiple = WORTH_QUANTIZING, MULTIPLE
            self.logits_at_once //= 2  # a copy takes as much memory as this saves
            self.least_logit_tokens = WORTH_QUANTIZING
        self.kept_offsets: dict[tuple[int, ...], Array] = {}
        self.attentions: dict[tuple[int, ...], Attention] = {}
        self.prompts = Prompts(self.kernels, self.sources, self.scratch)
        parts = self.kernels, self.sources, self.products, self.scratch, self.fp8
        self.runtime: CudaRuntime = CudaRuntime(self.device.index, *parts, graphs=graphs)

    def environment(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "device": self.device.name,
            "precision": self.precision,
            "residual": self.residual.name,
            "cublas": self.products.version,
            "cuda": cupy.cuda.runtime.runtimeGetVersion(),
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "cupy": cupy.__version__,
            "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        }

    # ---- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return allocate(shape, dtype or self.dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        array = self.empty(shape, dtype)
        array.data.memset_async(0, array.nbytes, self.stream)
        return array

    def from_host(self, array: np.ndarray, dtype: Any = None) -> Array:
        if dtype is None:
            dtype = self.dtype if array.dtype.kind == "f" else array.dtype
        host = np.ascontiguousarray(array, dtype)
        self.stream.use()
        return (
            cupy.asarray(host.view(np.uint16)).view(BFLOAT16)
            if host.dtype == BFLOAT16
            else cupy.asarray(host)
        )

    def to_host(self, array: Array) -> np.ndarray:
        if array.dtype == BFLOAT16:
            return array.view(np.uint16).get(stream=self.stream).view(BFLOAT16).astype(np.float32)
        return array.get(stream=self.stream)

    def working_copy(self, parameters: Array) -> Array:
        if parameters.dtype == self.activation:
            return parameters
        working = self.empty(parameters.shape, self.activation)
        self.refresh(working, parameters)
        return working

    def refresh(self, working: Array, parameters: Array) -> None:
        if working is not parameters:
            size = parameters.size
            arrays = parameters, working, np.int64(size)
            self.launch_elementwise(self.sources.update(), "refresh", size, *arrays)

    def widen(self, rounded: Array, values: Array) -> None:
        """`values` (float32) ← `rounded` (bfloat16), flat: the reverse of `refresh`."""
        size = values.size
        self.launch_elementwise(
            self.sources.update(), "widen", size, rounded, values, np.int64(size)
        )

    def launch_elementwise(
        self, source: Source, kernel: str, elements: int, *arguments: Argument
    ) -> None:
        """Launch threads that take `WIDTH` elements each."""
        grid = blocks(elements, ELEMENTWISE_THREADS * WIDTH)
        self.launch(source, kernel, grid, ELEMENTWISE_THREADS, *arguments)

    def launch_on_rows(self, name: str, kernel: str, like: Array, *arguments: Argument) -> None:
        """Launch a kernel of the file `name` that takes N rows of activations, (N, F) as `like`."""
        (N, F), sources = like.shape, self.sources
        self.launch_elementwise(sources.elementwise(name, F), kernel, N * F, *arguments, N)

    # ---- copies in e4m3 of an fp8 step: where they go, and the products that read them

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

    def add_product(self, x_NR: Array, weight_RO: Array, out_NO: Array, scale: float) -> None:
        self.multiply_rows(x_NR, weight_RO, out_NO, scale, out_NO, across=True)

    def linear_backward_weight(
        self, dout_NO: Array, x_NI: Array, dweight_OI: Array, *, accumulate: bool, scale: float = 1
    ) -> None:
        add = dweight_OI if accumulate else None
        factors = self.transposed_factors(dout_NO, x_NI)
        if factors is None:
            self.products.multiply(dout_NO, True, x_NI, False, dweight_OI, scale, add)
        else:
            self.multiply_e4m3(factors, dweight_OI, scale, add)


def allocate(shape: tuple[int, ...], dtype: Any) -> Array:
    try:
        return cupy.empty(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise MemoryError(f"the GPU's memory is full: {error}") from error


def inverses(factors: Factors) -> tuple[int, int]:
    """Addresses of what the factors are multiplied by."""
    left, right = factors
    return left.slot.data.ptr, right.slot.data.ptr
