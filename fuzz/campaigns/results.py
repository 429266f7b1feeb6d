"""What the report and the comparison read: metrics, evaluations and records of a run."""

import json
import shutil
from pathlib import Path

from fuzz.campaigns.base import Campaign, command
from fuzz.mutation import Mutator, to_json
from tests.evaluation.fabricated import fabricate


class Results(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.root = material / "fabricated"
        self.config, self.folder = fabricate(self.root)
        self.files = [
            path.relative_to(self.root)
            for path in sorted(self.root.rglob("*"))
            if path.suffix in (".json", ".jsonl", ".log")
        ]

    def run(self, mutate: Mutator, folder: Path) -> None:
        shutil.copytree(self.root, folder, dirs_exist_ok=True)
        path = folder / mutate.rng.choice(self.files)
        self.damage(mutate, path)
        own = {"data_dir": str(folder / "data"), "results_dir": str(folder / "results")}
        config = json.dumps(self.config | own)
        run = folder / self.folder.relative_to(self.root)
        outputs = [
            *("--output", "report.html", "--metrics", "metrics.json"),
            *("--table", "table.md", "--card", "card.md"),
        ]
        if "evaluation" in path.parts and mutate.chance(0.3):
            command("compare", *map(str, sorted((run / "evaluation").glob("*.json"))))
        elif mutate.chance(0.2):
            command("report", str(run), str(run), *outputs[:2])
        else:
            command("report", "--config", config, "--run", str(run), *outputs)

    def damage(self, mutate: Mutator, path: Path) -> None:
        content = path.read_bytes()
        way = mutate.rng.randrange(4)
        if way == 0:
            content = mutate.bytes(content)
        elif path.suffix == ".json":
            content = to_json(mutate.value(json.loads(content))).encode()
        elif path.suffix == ".jsonl":
            lines = content.decode().splitlines()
            number = mutate.rng.randrange(len(lines))
            lines[number] = to_json(mutate.value(json.loads(lines[number])))
            content = "\n".join(lines).encode()
        path.write_bytes(content)
