"""Time what Snakemake needs to plan many web shards, beside a plain Snakefile of as many jobs.

    python benchmarks/planning.py
    python benchmarks/planning.py --shards 10000 --runs 1

Nothing is downloaded or computed: files are empty, and marked as made by `snakemake --touch`. The
plain Snakefile has as many jobs, inputs and outputs for web pages, and short commands. Both are
planned by turns, so that whatever else the machine does slows both.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "hf://datasets/HuggingFaceFW/fineweb-edu/data/CC-MAIN-2013-20/train-{:05d}.parquet"
CONFIG = """
run: trial
sources: sources.json
corpus: {{name: web, sources: [fineweb], fineweb: {{shards: {shards}}}}}
model: {{preset: small}}
pretrain: {{tokens: 1000000, batch_tokens: 4096, learning_rate: 3.0e-3}}
sft: {{enabled: false}}
dpo: {{enabled: false}}
"""
PLAIN = """
SHARDS = [f"{{n:03d}}" for n in range({shards})]
SIZE = max(4, -(-{shards} // 100))
GROUPS = [f"{{n:03d}}" for n in range(-(-{shards} // SIZE))]
TEXTS = [f"web/shard-{{shard}}.txt" for shard in SHARDS]


def texts_of(wildcards):
    return TEXTS[int(wildcards.group) * SIZE : (int(wildcards.group) + 1) * SIZE]


wildcard_constraints:
    shard=r"\\d{{3,6}}",
    group=r"\\d{{3}}",


rule join:
    input: "corpus", expand("tokens/{{group}}", group=GROUPS)
    output: "joined"
    shell: "touch {{output}}"

rule extract:
    output: multiext("web/shard-{{shard}}", ".txt", ".index", ".parquet", ".json")
    shell: "touch {{output}}"

rule hold_out:
    input: TEXTS, [text.replace(".txt", ".json") for text in TEXTS]
    output: temp("held-out")
    shell: "touch {{output}}"

rule compare:
    input: "held-out", texts_of
    output: temp("compared/{{group}}")
    shell: "touch {{output}}"

rule choose:
    input: "held-out", expand("compared/{{group}}", group=GROUPS)
    output: temp("chosen")
    shell: "touch {{output}}"

rule write:
    input: "held-out", "chosen", texts_of
    output: temp("written/{{group}}")
    shell: "touch {{output}}"

rule build:
    input: "chosen", expand("written/{{group}}", group=GROUPS)
    output: "corpus"
    shell: "touch {{output}}"

rule encode:
    input: "corpus"
    output: temp("tokens/{{group}}")
    shell: "touch {{output}}"
"""


def make_nanoeuler(folder: Path, shards: int) -> None:
    """This project's workflow, with stages that do nothing."""
    for part in ("workflow", "profiles", "nanoeuler"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.nb[ci]"))
    shutil.copy(ROOT / "Snakefile", folder)
    (folder / "nanoeuler/__main__.py").write_text("")
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(CONFIG.format(shards=shards))
    named = [{"url": ADDRESS.format(n), "sha256": f"{n:064x}"} for n in range(shards)]
    pages = {"collection": "web", "licence": "ODC-By 1.0", "shards": named}
    (folder / "sources.json").write_text(json.dumps({"fineweb": pages}))


def make_plain(folder: Path, shards: int) -> None:
    (folder / "Snakefile").write_text(PLAIN.format(shards=shards))


def snakemake(folder: Path, *arguments: str) -> tuple[str, float, float]:
    """What Snakemake prints in `folder`, its wall seconds and its processor seconds."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        printed.seek(0)
        text = printed.read()
    if status:
        raise SystemExit(f"{' '.join(command)} failed in {folder}:\n{text}")
    return text, wall, usage.ru_utime + usage.ru_stime


def finish(folder: Path) -> None:
    """Mark every file as made, but for those that are deleted at the end of a run."""
    rows = snakemake(folder, "--summary")[0].splitlines()
    for row in rows:
        name, *columns = row.split("\t")
        temporary = "groups" in name or name.startswith(("held", "compared", "chosen", "written"))
        if len(columns) > 3 and name != "output_file" and not temporary:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    snakemake(folder, "--touch", "--quiet", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folders = {}
        for name, make in (("nanoeuler", make_nanoeuler), ("plain", make_plain)):
            folders[name] = Path(folder, name)
            folders[name].mkdir()
            make(folders[name], options.shards)
        measure("nothing made yet", folders, options.runs, "-n")
        for each in folders.values():
            finish(each)
        measure("nothing to do", folders, options.runs)


def measure(case: str, folders: dict[str, Path], runs: int, *arguments: str) -> None:
    """Print the fastest and slowest of `runs` plans in each folder, and the ratio of medians."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in folders}
    for _ in range(runs):
        for name, folder in folders.items():
            text, *used = snakemake(folder, *arguments)
            assert arguments or "Nothing to be done" in text, text
            seconds[name].append((used[0], used[1]))
    for place, kind in enumerate(("wall", "processor")):
        medians = []
        for name, measured in seconds.items():
            values = sorted(each[place] for each in measured)
            medians.append(statistics.median(values))
            print(f"{case}  {name:10} {kind:9} s  {values[0]:.2f} to {values[-1]:.2f}")
        print(f"{case}  {medians[0] / medians[1]:.2f} times the {kind} seconds of plain")


if __name__ == "__main__":
    main()
