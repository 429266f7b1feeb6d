"""The training state of a refined model: see `nanoeuler/model/refining.py`.

The gradient of a copy of a tensor is half of the tensor's. Halves and quarters of the moments
therefore make AdamW and Muon go on as they were: either moves each copy as far as it would have
moved the tensor. The first layer is the exception: what its second copy reads with begins without
moments, as it has no gradient yet, and its first copy keeps all of them.
"""

import numpy as np

from nanoeuler.model.refining import refine
from nanoeuler.training.state import TrainingState


def refined_tensors(state: TrainingState) -> dict[str, np.ndarray]:
    """`state.tensors()` on the host, for the refined model."""
    powers = {"parameters": 0, **state.optimizer_settings.tensor_powers}
    return {
        name: refine(state.config, array, powers[name]) for name, array in state.tensors().items()
    }
