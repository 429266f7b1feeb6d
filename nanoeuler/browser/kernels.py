"""The kernels of the WebGPU engine as device.js takes them."""

from typing import Any

from nanoeuler.backend.webgpu import sizes
from nanoeuler.backend.webgpu.engine import attention_rows
from nanoeuler.backend.webgpu.kernel_sources import NUMBERS_OF, prelude, source
from nanoeuler.backend.webgpu.parts import reads_heads
from nanoeuler.model.config import ModelConfig

DECODING = (
    *("embedding", "norm", "few_rows", "product", "rope", "cache", "attention", "activations"),
)
"""Files whose kernels a forward pass launches."""

TRAINING = (*DECODING, "columns", "losses", "update")
"""Those of training, too."""


def kernels(config: ModelConfig, files: tuple[str, ...] = DECODING) -> dict[str, Any] | None:
    """Texts, arrays and numbers of `files`, and sizes, for a model; None where its form is not one
    that the kernels read."""
    if not reads_heads(config.head_size):
        return None
    size, rows = config.head_size, attention_rows(config.head_size)
    # the page takes the code as it stands in the file, and says the constants of each launch itself
    found = {name: source(name, (("LEFT_ROWS", 1),)) for name in files}
    return {
        "prelude": prelude((("HEAD_SIZE", size),)),
        "numbers": NUMBERS_OF,
        "files": {
            name: {"code": each.code, "bindings": each.bindings, "fields": each.formats}
            for name, each in found.items()
        },
        "sizes": {key: value for key, value in vars(sizes).items() if key.isupper()}
        | {"MOST_ROWS": rows},
    }
