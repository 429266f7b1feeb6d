"""What is small: PEFT's folders of adapters, and models whose weights are codes and scales.

Damaged adapters are imported onto a model, in floats or quantized; damaged codes are used, accepted
or exported. What was taken must write text.
"""

import shutil
from pathlib import Path

import numpy as np

from fuzz.campaigns.base import command
from fuzz.campaigns.exchange import Exchange
from fuzz.mutation import Mutator
from nanoeuler.config.settings import Lora
from nanoeuler.model.adapters import adapted, save_adapters
from nanoeuler.model.files import load_config
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.storage.files import sha256_file
from tests.models import LLAMA, model_in

BASES = ("floats", "int8", "int4")


class Small(Exchange):
    def __init__(self, material: Path):
        super().__init__(material)
        self.folder = material / "small"
        if self.folder.exists():
            return
        floats = model_in(self.folder / "floats", LLAMA | {"dim": 32, "mtp_heads": 1})
        for scheme in BASES[1:]:
            command("quantize", str(floats), str(self.folder / scheme), "--to", scheme)
        for name in BASES:
            base = self.folder / name
            config = adapted(load_config(base), Lora(rank=2, targets=["q_proj", "down_proj"]))
            trained = np.ones(FlatBuffer.trained_elements(config), np.float32) / 100
            sha256 = sha256_file(base / "model.safetensors")
            save_adapters(self.folder / f"on-{name}", config, trained, base, sha256)

    def run(self, mutate: Mutator, folder: Path) -> None:
        name = mutate.rng.choice(BASES)
        base, given = self.folder / name, folder / "given"
        if mutate.chance(0.5):
            shutil.copytree(self.folder / f"on-{name}", given)
            self.damage(mutate, given)
            command("import", str(given), "--base", str(base), "--output", "model")
            self.use(folder / "model")
            return
        shutil.copytree(self.folder / mutate.rng.choice(BASES[1:]), given)
        self.damage(mutate, given)
        if mutate.chance(0.7):
            command("accept", str(given))
            self.use(given)
        elif mutate.chance(0.5):
            words = str(given), "The fox", "--max-tokens", "3", "--device", "reference"
            command("generate", *words)
        else:
            how = mutate.rng.choice(("hf", "gguf", "nanoeuler"))
            command("export", str(given), "--format", how, "--output", "out")
