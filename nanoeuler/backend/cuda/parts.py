"""Parts of the GPU engine and its arrays, on which the files of its ops build."""

from typing import Any

import cupy
import ml_dtypes
import numpy as np
from cupy import ndarray as Array

from nanoeuler.backend.cuda.attention import Attention
from nanoeuler.backend.cuda.cublaslt import CublasLt
from nanoeuler.backend.cuda.device import Device, peak_flops
from nanoeuler.backend.cuda.fp8 import MULTIPLE, WORTH_QUANTIZING, Fp8, check_capability
from nanoeuler.backend.cuda.fused_linear import WORTH_FUSING, FusedLinear
from nanoeuler.backend.cuda.kernel_sources import ELEMENTWISE_THREADS, WIDTH, KernelSources
from nanoeuler.backend.cuda.kernels import Argument, Kernels, blocks
from nanoeuler.backend.cuda.prompts import Prompts
from nanoeuler.backend.cuda.runtime import CudaRuntime
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.cuda.source import Source
from nanoeuler.backend.ops import Backend

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)


class CudaParts(Backend):
    """Device, kernels, products, memory between kernels, and arrays."""

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
        parts = self.kernels, self.sources.to_host(), self.products, self.scratch, self.fp8
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


def allocate(shape: tuple[int, ...], dtype: Any) -> Array:
    try:
        return cupy.empty(shape, dtype)
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise MemoryError(f"the GPU's memory is full: {error}") from error
