"""One's own text under hostile names, as `train` and Snakemake take it.

The corpus of each case must have just the text that was given, and no name may do anything.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.material import ROOT, environment
from fuzz.mutation import Mutator
from nanoeuler.cli.own_text import choose_name, command_line
from nanoeuler.errors import UserError
from nanoeuler.planning.own_run import SIZES, Choice, Text, make_config, write_config

PIECES = (
    *("$(touch HIT)", "`touch HIT`", "; touch HIT;", "' touch HIT '", '" touch HIT "', "\\", "\\n"),
    *(
        "\n",
        "\nresults_dir: HIT",
        "\t",
        " ",
        "  ",
        "#",
        "{draft}",
        "{}",
        "%s",
        "*",
        "?",
        "[1]",
        "!",
    ),
    *("-", "--books=", "--", "~", "$HOME", "&", "|", "<", ">", "(", "=", ":", ",", "@", "^", "é"),
    *(
        "红楼梦",
        "e\u0301",
        "\u202e",
        "\udce9",
        "\x1b[31m",
        "a" * 60,
        ".",
        "..",
        "train",
        "con",
        "0",
    ),
)
SENTENCE = "The fox sees the hen near the hill, and number {} walks away. "


class Names(Campaign):
    def run(self, mutate: Mutator, folder: Path) -> None:
        names = [self.name(mutate) for _ in range(mutate.rng.choice((1, 1, 2)))]
        inner = folder / self.name(mutate) if mutate.chance(0.3) else folder
        texts = {}
        for number, name in enumerate(dict.fromkeys(names)):
            path = inner / (name + mutate.rng.choice((".txt", ".md", ".txt", "/notes.txt")))
            texts[path] = "".join(SENTENCE.format(1000 * number + each) for each in range(400))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(texts[path])
            except OSError as error:
                raise UserError("no file can have this name") from error
        paths = [os.path.relpath(path, folder) for path in texts]
        paths = [path if mutate.chance(0.5) else f"./{path}" for path in paths]
        config_file = self.configuration(paths)
        before = {path for path in folder.rglob("*") if ".snakemake" not in path.parts}
        self.assemble(folder, config_file)
        made = {path.name for path in set(folder.rglob("*")) - before}
        if any("HIT" in name for name in made):
            raise BrokenPromise(f"a name was obeyed: {sorted(made)}")
        corpus = next(folder.glob("data/corpora/*/manifest.json"))
        read = sum(
            entry["read"]["bytes"] for entry in json.loads(corpus.read_text())["sources"].values()
        )
        if read != sum(map(len, texts.values())):
            raise BrokenPromise(f"{read} bytes were read instead of those of {list(texts)}")

    def name(self, mutate: Mutator) -> str:
        name = "".join(mutate.rng.choice(PIECES) for _ in range(mutate.rng.choice((1, 2, 3))))
        return name.replace("/", "").strip(".") or "x"

    def configuration(self, paths: list[str]) -> Path:
        """That of a run, as `train` writes it."""
        name = choose_name(paths, Path("results"), "# request")
        choice = Choice(SIZES[0], 10_000, 1_000.0)
        config = make_config(name, paths, Text(30_000, 10_000, 300, []), choice)
        file = Path("results", name, "config.yaml")
        write_config(file, [command_line(["nanoeuler", "train", *paths])], config)
        return file

    def assemble(self, folder: Path, config_file: Path) -> None:
        words = ["--cores", "1", "--quiet", "all", "--snakefile", str(ROOT / "Snakefile")]
        words += ["build_corpus", "--configfile", str(config_file)]
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *words],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            errors="replace",
        )
        shutil.rmtree(folder / ".snakemake", ignore_errors=True)
        said = done.stdout + done.stderr
        if "Traceback" in said:
            raise BrokenPromise(said[-3_000:])
        if done.returncode:
            raise UserError("refused")
