"""Configurations: YAML files as they are run, inline JSON, overrides, and the sources file.

Also the front matter of a stranger's model card, which is read in the same way.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from fuzz.campaigns.base import Campaign, command
from fuzz.material import ROOT
from fuzz.mutation import Mutator, to_json
from nanoeuler.config import load
from nanoeuler.interchange.importing import find_licence

FILES = [
    *(f"config/{name}.yaml" for name in ("config", "small", "medium", "base", "large", "sample")),
    "tests/workflow/ci.yaml",
]
LINES = (
    *("a: &a [x, x]", "b: &b [*a, *a, *a]", "<<: *a", "<<: {run: y}", "!!python/object:os.system"),
    *("run: ! x", "run: 2026-01-01", "seed: 0o17", "seed: 1_000", "seed: 12:30:45", "seed: .nan"),
    *("\t run: x", "run: 'x", "? [a, b]\n: c", "run: |\n  x\n y", "---\nrun: z", "%YAML 9.9"),
    *("model: {preset: small, layers: 100000}", "model: {preset: small, mtp_heads: 2147483648}"),
    *("sources: /proc/self/mem", "sources: .", "corpus: {sources: ['**']}", "- x", "]", "\x85"),
    *("&x *x", "model: " + "[" * 2_000, "run: !!timestamp x", "seed: !!int ''", "run: !!bool x"),
    *("seed: 010", "run: on", "run: 3.10", "__use_yte__: true", "!!str run: x", "&run run: *run"),
    "k: [" + "0, " * 99_990 + "]",
    "# padding\n" * 99_000 + "x: &x [y, y]",
    "l0: &l0 [x, x]\n" + "\n".join(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}]" for n in range(1, 64)),
)


class Config(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
        self.values = {name: yaml.safe_load(text) for name, text in self.texts.items()}
        self.resolved = load(ROOT / "tests/workflow/ci.yaml", ["sources=" + str(ROOT / FILES[5])])

    def run(self, mutate: Mutator, folder: Path) -> None:
        shutil.copytree(ROOT / "config", folder / "config")
        name = mutate.rng.choice(FILES)
        path = folder / "config" / Path(name).name
        path.write_bytes(self.damaged(mutate, name))
        if path.name == "sample.yaml":  # the sources file of another
            path = folder / "config/config.yaml"
        # without stages, `plan` times no steps, which takes as long as the model is large
        stage = mutate.rng.choice((("info",), ("plan", "--stages", "")))
        if mutate.chance(0.2):
            inline = to_json(mutate.value(self.resolved))
            command(*stage, "--config", inline)
        elif mutate.chance(0.2):
            load(path, [self.override(mutate) for _ in range(mutate.rng.choice((1, 2)))])
        elif mutate.chance(0.2):
            front = f"---\n{path.read_text(errors='replace')}\n---\n"
            (folder / "README.md").write_text(front, errors="replace")
            find_licence(folder)
        else:
            command(*stage, "--config", str(path.relative_to(folder)))

    def damaged(self, mutate: Mutator, name: str) -> bytes:
        text = self.texts[name]
        way = mutate.rng.randrange(4)
        if way == 0:
            return mutate.bytes(text.encode())
        if way == 1:
            lines = text.split("\n")
            for _ in range(mutate.rng.choice((1, 2))):
                lines.insert(mutate.rng.randrange(len(lines)), mutate.rng.choice(LINES))
            return "\n".join(lines).encode()
        changed = mutate.value(self.values[name])
        if way == 2:
            return to_json(changed).encode("utf-8", "surrogatepass")
        return yaml.safe_dump(changed, sort_keys=False).encode("utf-8", "replace")

    def override(self, mutate: Mutator) -> str:
        sections = [name for name, value in self.resolved.items() if isinstance(value, dict)]
        section = mutate.rng.choice(sections)
        key = mutate.rng.choice([*self.resolved[section], mutate.text("key")])
        value: Any = mutate.scalar()
        written = value if isinstance(value, str) else json.dumps(value)
        return mutate.rng.choice((f"{section}.{key}={written}", f"{section}={written}", written))
