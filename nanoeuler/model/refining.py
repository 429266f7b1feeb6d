"""Growth in depth: twice the layers, each of half the step, and to first order the same function.

A layer is a forward-Euler step of size h. Layer l of a model becomes the layers 2l and 2l + 1 of
the refined one, with its weights and h / 2 each. Refined again and again, a model converges with
order one to the flow of an ODE in depth, so that a refinement changes its outputs by O(h).

The first layer is kept whole: a trained one adds many times the length of the embedding, which is
no small step of anything. Its first copy has twice the output weights, so that it takes all of the
step; its second copy has none, and adds nothing until it is trained.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig, refined
from nanoeuler.model.files import WEIGHTS, load_model, require_floats, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.weights_file import OUTPUTS
from nanoeuler.storage.files import sha256_file

LAYER = re.compile(r"(model\.layers|transformer\.h)\.(\d+)\.")


def refine(config: ModelConfig, array: np.ndarray, power: int = 0) -> np.ndarray:
    """The flat buffer `array` of a model of `config` for the refined model.

    `power` is 0 for parameters, 1 for gradients and what grows with them, 2 for their squares.
    """
    finer = refined(config)
    source = FlatBuffer(config, array)
    target = FlatBuffer(finer, np.zeros(FlatBuffer.elements(finer), array.dtype))
    for tensor in target.table:
        found = LAYER.match(tensor.name)
        if found is None:
            target[tensor.name][...] = source[tensor.name]
        else:
            layer, part = int(found[2]), tensor.name[found.end() :]
            original = source[f"{found[1]}.{layer // 2}.{part}"]
            target[tensor.name][...] = factor(layer, part, power) * original
    return target.array


def factor(layer: int, part: str, power: int) -> float:
    """By what the tensor `part` of a layer of the refined model differs from its original.

    Two copies share the effect of their original, so that the gradient of each is half of its
    gradient, to first order. So is that of the outputs of the first layer's copies. Of its inputs,
    the first copy has all of the gradient, and the second none: nothing comes of what they give.
    """
    is_output = part.endswith(OUTPUTS)
    if layer > 1 or (is_output and power > 0):
        return 0.5**power
    if is_output:
        return 2.0 if layer == 0 else 0.0
    return 1.0 if layer == 0 or power == 0 else 0.0


def refine_folder(folder: Path, output: Path) -> ModelConfig:
    """Write the refined model of a model folder to `output`; returns its configuration.

    Raises `UserError` when the model is damaged, or `output` is its folder.
    """
    if os.path.realpath(output) == os.path.realpath(folder):  # also of links in a circle
        raise UserError(f"{output}: the model itself lies there; give another folder")
    model = load_model(folder)
    require_floats(folder, model.quantized.scheme if model.quantized else None)
    origin = sha256_file(model.tokenizer_path.with_name(WEIGHTS))
    config = refined(model.config)
    parameters = refine(model.config, model.parameters)
    info = model.info | {"refined_from": origin}
    save_model(output, replace(model, config=config, parameters=parameters, info=info))
    return config
