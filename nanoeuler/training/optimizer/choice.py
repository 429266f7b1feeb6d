"""The optimizer that the settings of a stage name."""

from nanoeuler.config.settings import Training
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.lion import Lion
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.optimizer.optimizer import OptimizerSettings


def optimizer_of(settings: Training) -> OptimizerSettings:
    s = settings
    adamw = AdamW(s.beta1, s.beta2, s.epsilon, s.weight_decay, s.clip_norm, s.embedding_rate)
    if s.optimizer == "muon":
        return Muon(s.muon_momentum, adamw)
    return Lion(adamw) if s.optimizer == "lion" else adamw
