"""The engines that compute a model: one contract of ops, and its implementations."""

from typing import TYPE_CHECKING, Literal, get_args

from nanoeuler.errors import UserError, brief
from nanoeuler.log import counted
from nanoeuler.system.machine import threads_allowed

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

DeviceName = Literal["auto", "cpu", "cuda", "webgpu", "reference"]
DEVICES: tuple[str, ...] = get_args(DeviceName)
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp8", "fp16")


def make_backend(
    device: str = "auto", gpus: int | None = None, precision: str = "auto", residual: str = "auto"
) -> "Backend":
    """The backend for `--device`; `gpus` = 0 forces the CPU.

    `auto` takes a GPU where one answers, by CUDA or else by WebGPU, else the CPU. `precision`
    (fp32, tf32, bf16, fp8; auto: bf16) and `residual`, the type of the residual stream (fp32, bf16;
    auto: bf16), are for CUDA; others compute in float32. WebGPU keeps the matrices of a model that
    is not trained in float16 where `precision` is fp16, or auto and the adapter a GPU that reads
    it; where it is fp16, activations and their gradients, too. Raises `UserError` for a device that
    is not there, and a precision that it lacks.
    """
    if device not in DEVICES:
        raise UserError(f"--device {device}: there are {', '.join(DEVICES)}")
    if precision not in PRECISIONS:
        raise UserError(f"precision {brief(precision)}: there are {', '.join(PRECISIONS)}")
    if gpus is not None and (not isinstance(gpus, int) or gpus < 0):
        raise UserError(
            f"--gpus {brief(gpus)}: give the number of GPUs that may be used, or 0 to force the CPU"
        )
    if gpus is not None and gpus > 1:
        raise UserError(
            f"--gpus {gpus}: only training and evaluate are shared by GPUs; give 1, or 0 for "
            "the CPU"
        )
    if device == "reference":
        from nanoeuler.backend.reference import ReferenceBackend

        return ReferenceBackend()
    asked_for = device == "cuda" or (device == "auto" and gpus != 0)
    problem = gpu_problem() if asked_for else "not asked for"
    if device == "cuda" and problem:
        raise UserError(f"--device cuda: {problem}")
    # checked second: where there is no GPU, it is the workflow that adds --gpus 0
    if device in ("cuda", "webgpu") and gpus == 0:
        raise UserError(
            f"--device {device} with --gpus 0 contradict each other; leave one of them out"
        )
    if problem is None:
        from nanoeuler.backend.cuda.engine import CudaBackend

        if precision == "fp16":
            raise UserError("precision fp16: by CUDA there is bf16 instead")
        if precision == "auto":
            precision = "bf16"
        if residual == "auto":
            residual = "bf16"
        return CudaBackend(precision, residual)
    if takes_gpu(device, gpus):
        from nanoeuler.backend.webgpu.engine import WebGpuBackend

        return WebGpuBackend(precision)
    from nanoeuler.backend.cpu.engine import CpuBackend

    return CpuBackend()


def takes_gpu(device: str = "auto", gpus: int | None = None) -> bool:
    """Does `make_backend(device, gpus)` take a GPU, by CUDA or by WebGPU?"""
    if device != "auto" or gpus == 0:
        return device in ("cuda", "webgpu")
    return not (gpu_problem() and webgpu_problem())


def gpu_problem() -> str | None:
    """Why there is no GPU that CUDA can use, in one sentence; None when there is one."""
    from nanoeuler.backend.cuda.device import found

    return found()


def webgpu_problem() -> str | None:
    """Why WebGPU reaches no GPU that `auto` would take, in one sentence; None when it does."""
    from nanoeuler.backend.webgpu.device import found

    return found(chosen=True)


def gpu_count() -> int:
    """GPUs that the CUDA engine can use."""
    from nanoeuler.backend.cuda.device import usable

    return 0 if gpu_problem() else len(usable())


def reason(device: str = "auto", gpus: int | None = None) -> str:
    """Why `make_backend(device, gpus)` takes the backend that it does, for people."""
    from nanoeuler.backend.webgpu.device import described

    reached = f"; WebGPU reaches {adapters}" if (adapters := described()) else ""
    if device in ("reference", "cuda", "webgpu"):
        return f"asked for by --device {device}{reached}"
    problem = gpu_problem() if device == "auto" and gpus != 0 else "no GPU was asked for"
    if problem is None:
        return f"the fastest engine there is{reached}"
    if takes_gpu(device, gpus):
        return f"the fastest engine for this GPU; {problem}{reached}"
    threads = counted(threads_allowed(), "thread")
    return f"the fastest engine for a CPU, with {threads}; {problem}{reached}"
