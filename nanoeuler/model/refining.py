"""Growth in depth: twice the layers, each of half the step, and to first order the same function.

A layer is a forward-Euler step of size h. Layer l of a model becomes the layers 2l and 2l + 1 of
the refined one, with its weights and h / 2 each. Refined again and again, a model converges with
order one to the flow of an ODE in depth, so that a refinement changes its outputs by O(h).
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError
from nanoeuler.files import sha256_file
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.depth import refined
from nanoeuler.model.files import WEIGHTS, load_model, save_model
from nanoeuler.model.flat import FlatBuffer

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def refine(config: ModelConfig, array: np.ndarray, share: float = 1.0) -> np.ndarray:
    """The flat buffer `array` of a model of `config` for the refined model.

    Each copy of a layer's tensor gets `share` of its values.
    """
    finer = refined(config)
    source = FlatBuffer(config, array)
    target = FlatBuffer(finer, np.zeros(FlatBuffer.elements(finer), array.dtype))
    for tensor in target.table:
        layer = LAYER.match(tensor.name)
        if layer is None:
            target[tensor.name][...] = source[tensor.name]
        else:
            name = f"model.layers.{int(layer[1]) // 2}.{tensor.name[layer.end() :]}"
            target[tensor.name][...] = share * source[name]
    return target.array


def refine_folder(folder: Path, output: Path) -> ModelConfig:
    """Write the refined model of a model folder to `output`; returns its configuration.

    Raises `UserError` when the model is damaged, or `output` is its folder.
    """
    if output.resolve() == folder.resolve():
        raise UserError(f"{output}: the model itself lies there; give another folder")
    model = load_model(folder)
    origin = sha256_file(model.tokenizer_path.with_name(WEIGHTS))
    config = refined(model.config)
    parameters = refine(model.config, model.parameters)
    info = model.info | {"refined_from": origin}
    save_model(output, replace(model, config=config, parameters=parameters, info=info))
    return config
