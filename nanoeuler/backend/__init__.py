"""How the model is computed: one table of ops, implemented by interchangeable backends."""

from typing import Any

from nanoeuler.errors import UserError

DEVICES = ("auto", "cpu", "cuda", "reference")


def make_backend(device: str = "auto", gpus: int | None = None) -> Any:
    """The backend for `--device`; `gpus` = 0 forces the CPU.

    Raises `UserError` for a device that is not there.
    """

    if device not in DEVICES:
        raise UserError(f"--device {device}: there are {', '.join(DEVICES)}")
    if device == "cuda":
        raise UserError("--device cuda: this version has no CUDA engine; use --device auto, which takes the fastest engine there is")
    if device == "reference":
        from nanoeuler.backend.reference import ReferenceBackend

        return ReferenceBackend()
    from nanoeuler.backend.cpu.engine import CpuBackend

    return CpuBackend()


def reason(device: str = "auto") -> str:
    """Why `make_backend(device)` takes the backend that it takes, in words."""
    if device == "reference":
        return "asked for by --device reference"
    from nanoeuler.backend.cpu.blas import threads_allowed

    return f"the fastest engine for a CPU, with {threads_allowed()} threads"
