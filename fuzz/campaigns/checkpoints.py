"""Files that a run has written: models, checkpoints and inputs of training.

One file is changed, and the stage runs again. It must refuse, or end with the weights of a run that
nothing disturbed.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from fuzz.campaigns.base import BrokenPromise, Campaign, command
from fuzz.material import CONFIG, INPUTS, PARENTS, training_command
from fuzz.mutation import Mutator, to_json
from nanoeuler.model.files import load_model

PROMPT = ("--prompt", "Say fox.", "--max-tokens", "4", "--device", "reference")


class Checkpoints(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.config: dict[str, Any] = json.loads(json.dumps(CONFIG))
        self.config["pretrain"] |= {"tokens": 20 * 128, "validate_every": 10}
        for stage in ("sft", "dpo", "rl"):
            self.config[stage] |= {"epochs": 1}
        self.whole = material / "short"
        shutil.rmtree(self.whole, ignore_errors=True)
        shutil.copytree(material / "data", self.whole / "data")
        for stage in INPUTS:
            command(*training_command(stage, *self.folders(self.whole), self.config))
        self.weights = {stage: weights_of(self.whole / "run", stage) for stage in INPUTS}
        self.meanings = {stage: meaning(self.whole / "run" / stage / "model") for stage in INPUTS}

    def folders(self, folder: Path) -> tuple[Path, Path]:
        return folder / "data", folder / "run"

    def run(self, mutate: Mutator, folder: Path) -> None:
        stage = mutate.rng.choice(list(INPUTS))
        data, run = self.folders(folder)
        shutil.copytree(self.whole, folder, dirs_exist_ok=True)
        if mutate.chance(0.4):
            self.damage(mutate, run / stage / "model")
            self.read_model(mutate, run / stage / "model", stage)
            return
        model = run / stage / "model"
        shutil.rmtree(model)
        checkpoints = run / stage / "checkpoints"
        inputs = [data / INPUTS[stage]]
        if stage in PARENTS:
            inputs.append(run / PARENTS[stage] / "model")
        if mutate.chance(0.5):
            self.damage(mutate, checkpoints)
        else:
            shutil.rmtree(run / stage)
            self.damage(mutate, mutate.rng.choice(inputs))
        command(*training_command(stage, data, run, self.config))
        if weights_of(run, stage) != self.weights[stage]:
            raise BrokenPromise(f"{stage} ends with other weights from {self.changed}")

    def damage(self, mutate: Mutator, folder: Path) -> None:
        """Change one file below `folder`."""
        path = mutate.rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        self.changed = str(path.relative_to(folder.parents[1]))
        content = path.read_bytes()
        if mutate.chance(0.03):
            path.unlink()
            return
        if path.suffix == ".json" and mutate.chance(0.7):
            content = to_json(mutate.value(json.loads(content))).encode()
        elif path.suffix == ".jsonl" and mutate.chance(0.7):
            lines = content.decode().splitlines()
            number = mutate.rng.randrange(len(lines))
            lines[number] = to_json(mutate.value(json.loads(lines[number])))
            content = "\n".join(lines).encode() + b"\n"
        elif path.suffix == ".safetensors" and mutate.chance(0.5):
            content = mutate.bytes(content, 0, 8 + int.from_bytes(content[:8], "little"))
        else:
            content = mutate.bytes(content)
        path.write_bytes(content)

    def read_model(self, mutate: Mutator, folder: Path, stage: str) -> None:
        if mutate.chance(0.5):
            command("generate", "--model", str(folder), *PROMPT)
        elif mutate.chance(0.5):
            command("info", "--model", str(folder))
        found = meaning(folder)
        if found != self.meanings[stage]:
            raise BrokenPromise(f"a model folder of other content is read: {self.changed}")


def weights_of(run: Path, stage: str) -> str:
    path = run / stage / "model/model.safetensors"
    if not path.exists():
        raise BrokenPromise(f"{stage} ends well without a model")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def meaning(folder: Path) -> tuple[object, ...]:
    """All of a model folder that changes what the model says."""
    model = load_model(folder)
    tokenizer = model.tokenizer_path.read_bytes()
    weights = hashlib.sha256(model.parameters.tobytes()).hexdigest()
    return model.config.to_dict(), weights, model.template, hashlib.sha256(tokenizer).hexdigest()
