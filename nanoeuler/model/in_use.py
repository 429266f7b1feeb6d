"""Models that are used and not trained, whose matrices an engine may keep in float16."""

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FLOAT16, FlatBuffer, fits_float16
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.transformer import Transformer


def model_in_use(
    config: ModelConfig, parameters: np.ndarray, backend: Backend, *, byte_cache: bool = False
) -> Transformer:
    """A model of flat float32 parameters on the host.

    An engine that `halves_weights` gets its matrices in float16, unless one of their numbers is
    larger than those, and the weights of norms in float32. `byte_cache`: see `CachePool`.
    """
    norms, dtype = None, None
    if backend.halves_weights and fits_float16(parameters) and config.lora is None:
        views, dtype = FlatBuffer(config, parameters), FLOAT16
        vectors = (tensor.name for tensor in views.table if len(tensor.shape) == 1)
        norms = {name: backend.from_host(views[name]) for name in vectors}
    weights = backend.from_host(parameters, dtype)
    return Transformer(config, weights, backend, norms=norms, byte_cache=byte_cache)


def is_halved(model: Transformer) -> bool:
    """Are its matrices float16?"""
    given = model.parameters
    return not isinstance(given, QuantizedBuffer) and bool(given.dtype == FLOAT16)
