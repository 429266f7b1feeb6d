"""Models from and to other programs: damaged folders are imported, accepted, exported and used.

What was imported or accepted must write text, or be refused before.
"""

import json
import shutil
from pathlib import Path

from fuzz.campaigns.base import BrokenPromise, Campaign, command
from fuzz.mutation import Mutator, to_json
from nanoeuler.errors import UserError
from nanoeuler.inference import api

SPARSE = 60_000_000  # bytes, most of which take no room on the disk


class Exchange(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.model = material / "run/sft/model"
        self.foreign = material / "foreign"
        if not self.foreign.exists():
            command("export", str(self.model), "--format", "hf", "--output", str(self.foreign))

    def run(self, mutate: Mutator, folder: Path) -> None:
        accepts = mutate.chance(0.4)
        given = folder / "given"
        shutil.copytree(self.model if accepts else self.foreign, given)
        self.damage(mutate, given)
        if not accepts:
            command("import", str(given), "--output", "model")
            self.use(folder / "model")
        elif mutate.chance(0.8):
            command("accept", str(given))
            self.use(given)
        else:
            how = mutate.rng.choice(("hf", "gguf", "nanoeuler"))
            command("export", str(given), "--format", how, "--output", "out")

    def use(self, model: Path) -> None:
        try:
            api.load(model, "reference").generate("The fox", max_tokens=3)
        except UserError as error:
            if "not finite" in str(error):  # which no reader can know
                raise
            raise BrokenPromise(f"it was taken, and cannot be used: {error}") from error

    def damage(self, mutate: Mutator, folder: Path) -> None:
        path = mutate.rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
        if mutate.chance(0.05):
            path.unlink()
        elif mutate.chance(0.05):
            with open(path, "r+b") as file:
                file.truncate(SPARSE)
        elif path.suffix == ".json" and mutate.chance(0.8):
            value = mutate.value(json.loads(path.read_bytes()))
            path.write_bytes(to_json(value).encode("utf-8", "surrogatepass"))
        elif path.suffix == ".safetensors":
            content = path.read_bytes()
            last = 8 + int.from_bytes(content[:8], "little") if mutate.chance(0.7) else None
            path.write_bytes(mutate.bytes(content, 0, last))
        else:
            path.write_bytes(mutate.bytes(path.read_bytes()))
