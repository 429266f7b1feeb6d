"""The engines that compute a model: one contract of ops, and its implementations."""

from typing import TYPE_CHECKING

from nanoeuler.errors import UserError
from nanoeuler.log import counted
from nanoeuler.system.machine import threads_allowed

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

DEVICES = ("auto", "cpu", "cuda", "reference")


def make_backend(
    device: str = "auto", gpus: int | None = None, precision: str = "auto", residual: str = "auto"
) -> "Backend":
    """The backend for `--device`; `gpus` = 0 forces the CPU.

    `auto` takes a GPU where one answers, else the CPU. `precision` (fp32, tf32, bf16,
    fp8; auto: bf16) and `residual`, the type of the residual stream (fp32, bf16; auto: bf16), are
    for a GPU; a CPU computes in float32. Raises `UserError` for a device that is not there.
    """
    if device not in DEVICES:
        raise UserError(f"--device {device}: there are {', '.join(DEVICES)}")
    if gpus is not None and gpus < 0:
        raise UserError(
            f"--gpus {gpus}: give the number of GPUs that may be used, or 0 to force the CPU"
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
    if device == "cuda" and gpus == 0:
        raise UserError("--device cuda with --gpus 0 contradict each other; leave one of them out")
    if problem is None:
        from nanoeuler.backend.cuda.engine import CudaBackend

        if precision == "auto":
            precision = "bf16"
        if residual == "auto":
            residual = "bf16"
        return CudaBackend(precision, residual)
    from nanoeuler.backend.cpu.engine import CpuBackend

    return CpuBackend()


def gpu_problem() -> str | None:
    """Why there is no usable GPU, in one sentence; None when there is one."""
    from nanoeuler.backend.cuda.device import found

    return found()


def gpu_count() -> int:
    """GPUs that the engine can use."""
    from nanoeuler.backend.cuda.device import usable

    return 0 if gpu_problem() else len(usable())


def reason(device: str = "auto", gpus: int | None = None) -> str:
    """Why `make_backend(device, gpus)` takes the backend that it does, for people."""
    if device in ("reference", "cuda"):
        return f"asked for by --device {device}"
    problem = gpu_problem() if device == "auto" and gpus != 0 else "no GPU was asked for"
    if problem is None:
        return "the fastest engine there is"
    return f"the fastest engine for a CPU, with {counted(threads_allowed(), 'thread')}; {problem}"
