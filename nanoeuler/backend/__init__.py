"""How the model is computed: one table of ops, implemented by interchangeable backends."""

from typing import Any

from nanoeuler.errors import UserError

DEVICES = ("auto", "cpu", "cuda", "reference")


def make_backend(device: str = "auto", gpus: int | None = None) -> Any:
    """The backend for `--device`; `gpus` = 0 forces the CPU.

    The NumPy reference is the only engine yet, so `auto` and `cpu` mean it. Raises `UserError` for a device that is not there.
    """
    from nanoeuler.backend.reference import ReferenceBackend

    if device not in DEVICES:
        raise UserError(f"--device {device}: there are {', '.join(DEVICES)}")
    if device == "cuda":
        raise UserError("--device cuda: this version has no CUDA engine; use --device auto, which takes the fastest engine there is")
    return ReferenceBackend()


def reason(device: str = "auto") -> str:
    """Why `make_backend(device)` takes the backend that it takes, in words."""
    return "asked for by --device reference" if device == "reference" else "plain NumPy, the only engine of this version"
