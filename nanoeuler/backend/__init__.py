"""How the model is computed: one contract of ops, and the engines that fulfil it."""

from typing import TYPE_CHECKING

from nanoeuler.cores import threads_allowed
from nanoeuler.errors import UserError
from nanoeuler.log import counted

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

DEVICES = ("auto", "cpu", "cuda", "reference")


def make_backend(
    device: str = "auto", gpus: int | None = None, precision: str = "auto", residual: str = "auto"
) -> "Backend":
    """The backend for `--device`; `gpus` = 0 forces the CPU. `auto` takes a GPU when one answers, else the CPU.

    `precision` (fp32, tf32, bf16; auto: bf16) and `residual` (the residual stream's type: fp32, bf16) are a GPU's; a CPU
    computes in float32. Raises `UserError` for a device that is not there.
    """
    if device not in DEVICES:
        raise UserError(f"--device {device}: there are {', '.join(DEVICES)}")
    if gpus is not None and gpus < 0:
        raise UserError(
            f"--gpus {gpus}: give the number of GPUs that may be used, or 0 to force the CPU"
        )
    if device == "reference":
        from nanoeuler.backend.reference import ReferenceBackend

        return ReferenceBackend()
    problem = (
        gpu_problem() if device == "cuda" or (device == "auto" and gpus != 0) else "not asked for"
    )
    if device == "cuda" and problem:
        raise UserError(f"--device cuda: {problem}")
    if (
        device == "cuda" and gpus == 0
    ):  # the workflow's --gpus is 0 where there is none, which the sentence above is about
        raise UserError("--device cuda with --gpus 0 contradict each other; leave one of them out")
    if problem is None:
        from nanoeuler.backend.cuda.engine import CudaBackend

        return CudaBackend(
            "bf16" if precision == "auto" else precision, "bf16" if residual == "auto" else residual
        )
    from nanoeuler.backend.cpu.engine import CpuBackend

    return CpuBackend()


def gpu_problem() -> str | None:
    """Why there is no usable GPU, in one sentence; None when there is one."""
    from nanoeuler.backend.cuda.device import found

    return found()


def reason(device: str = "auto", gpus: int | None = None) -> str:
    """Why `make_backend(device, gpus)` takes the backend that it takes, in words."""
    if device in ("reference", "cuda"):
        return f"asked for by --device {device}"
    problem = gpu_problem() if device == "auto" and gpus != 0 else "no GPU was asked for"
    if problem is None:
        return "the fastest engine there is"
    return f"the fastest engine for a CPU, with {counted(threads_allowed(), 'thread')}; {problem}"
