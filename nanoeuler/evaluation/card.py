"""What stands beside the page: the model card, results/<run>/README.md, as model hubs read it, and
the numbers of the run for machines, metrics.json.
"""

import json
import re
import shlex
from collections.abc import Iterator

from nanoeuler.config.stages import BY_SECTION, PRETRAIN, result_of
from nanoeuler.corpus.sources.registry import ALL_TEXTS, NAMED, SOURCES
from nanoeuler.evaluation.formats import NARROW, size, stage_name
from nanoeuler.evaluation.report.background import licence_verdict, used_licences
from nanoeuler.evaluation.report.gather import Json, Run, Stage, entitled
from nanoeuler.evaluation.report.page import sentence
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.evaluation.report.training import FACTS, facts
from nanoeuler.evaluation.scores import Row, replies_and_tasks, score_rows
from nanoeuler.log import counted, printable
from nanoeuler.model.companions import forced_licence

SHAPE = ("dim", "layers", "heads", "kv_heads", "ffn", "context", "vocab_size", "mtp_heads")
FAMILIES = {
    "llama": "the Llama family (RMSNorm, rotary positions, grouped-query attention, SwiGLU)",
    "gpt2": "the GPT-2 family (LayerNorm, learned positions, multi-head attention, GELU, biases)",
}
LEFT_OUT = ("sources", "data_dir", "results_dir", "checkpoint_mirror", "slurm")
"""Sections of the configuration that say nothing of the model."""


def card(run: Run) -> str:
    """The model card of `run` as Markdown behind YAML front matter; sections without facts are left
    out."""
    matter, run = front_matter(run), entitled(run)
    evaluations = run.evaluations
    licences = used_licences(run)
    shapes = (evaluation.get("model") for evaluation in evaluations.values())
    shape = next(filter(None, shapes), run.config.get("model", {}))
    measured = result_of(evaluations)
    text = render(
        "card.md",
        front_matter=matter,
        name=run.name,
        sentence=sentence(run),
        **usage(run),
        data=data_rows(run, licences),
        verdict=licence_verdict(licences),
        facts=[*FACTS],
        training=training_rows(run),
        family=FAMILIES.get(str(shape.get("family")), FAMILIES["llama"]),
        shape=", ".join(f"{key} {shape[key]}" for key in SHAPE if key in shape),
        checked=run.checked,
        stages=list(evaluations),
        scores=score_rows(list(evaluations.values()), run.bigram),
        parameters=run.first.parameters,
        tokens=run.stages.get(PRETRAIN.name, Stage("")).tokens_of_model,
        measured=measured,
        evaluation={"model": None} | evaluations.get(measured, {}),
        **origin(run),
    )
    return printable(text.replace(NARROW, " "))


def usage(run: Run) -> Json:
    models = [name for name, stage in run.stages.items() if stage.finished or stage.evaluation]
    best = result_of(models)
    prompt = next(iter(run.config.get("evaluate", {}).get("prompts", [])), "Hello!")
    return {
        "models": models,
        "best": best,
        "tuned": bool(run.evaluations.get(best, {}).get("template")),
        "shell_prompt": shlex.quote(prompt),
        "fence": "`" * max([3, *(1 + len(ticks) for ticks in re.findall("`+", prompt))]),
        "python_prompt": repr(prompt),
    }


def origin(run: Run) -> Json:
    """Everything that it takes to make the models again."""
    trained = (stage.header.get("provenance") for stage in run.stages.values())
    made: Json = next(filter(None, trained), {})
    packages = made.get("packages") or {}
    prints = {name: stage.header.get("fingerprint") for name, stage in run.stages.items()}
    settings = {key: value for key, value in run.config.items() if key not in LEFT_OUT}
    return {
        "made": {"commit": None, "dirty": False} | made,
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "fingerprints": {name: value for name, value in prints.items() if value},
        "promised": promised(run),
        "configuration": json.dumps(settings, indent=1, ensure_ascii=False),
    }


def promised(run: Run) -> dict[str, str]:
    """How far the bits of stages are `reproducible`, by that setting: names of the stages."""
    found: dict[str, list[str]] = {}
    for name, stage in run.stages.items():
        settings = (stage.header.get("config") or {}).get(name) or {}
        if mode := settings.get("reproducible"):
            found.setdefault(mode, []).append(stage_name(name))
    return {mode: ", ".join(names) for mode, names in found.items()}


def front_matter(run: Run) -> dict[str, str]:
    """Key → value in YAML. The only licence is the one that the data forces, since the rest is the
    owner's to choose."""
    values: dict[str, str | list[str]] = {
        "library_name": "nanoeuler",
        "pipeline_tag": "text-generation",
    }
    texts = {source.name: source for source in ALL_TEXTS}
    languages = {
        texts[name].language(run.config) if name in texts else None for name in run.sources
    }
    if run.corpus and None not in languages:
        values["language"] = sorted(filter(None, languages))
    if licence := forced_licence(used_licences(run).values()):
        values["license"] = licence
    if datasets := sorted(set(hub_datasets(run))):
        values["datasets"] = datasets
    values["tags"] = ["nanoeuler", *sorted(run.stages)]
    # JSON is YAML, whatever the text.
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def hub_datasets(run: Run) -> Iterator[str]:
    """The names on a hub of the data sets that were used, where their addresses tell."""
    untouched = {source for source in NAMED if source.name not in run.sources}
    used = [
        entry
        for source in SOURCES
        if source not in untouched
        for entry in source.learned(run.config)
    ]
    for source in used:
        address = source.get("url") or ""
        if found := re.search(r"huggingface\.co/datasets/([\w.-]+/[\w.-]+)", address):
            yield found.group(1)


def data_rows(run: Run, licences: dict[str, str]) -> list[Row]:
    """Name, amount and licence of everything that was learned from."""
    amounts = {}
    for name, source in run.sources.items():
        documents = counted(source["train"]["documents"], "document")
        amounts[name] = f"{documents}, {size(source['train']['bytes'])}"
    for name, stage in run.stages.items():
        records = BY_SECTION[name].records if name in BY_SECTION else None
        number = stage.header.get(f"{records.unit}s") if records else None
        if records and number is not None:
            names = (name for name in licences if name.endswith(f" {records.kind}"))
            amounts |= {name: counted(number, records.unit) for name in names}
    return [[name, amounts.get(name, "–"), licence] for name, licence in licences.items()]


def training_rows(run: Run) -> list[Row]:
    rows = []
    for name, stage in run.stages.items():
        if stage.last:
            title = stage_name(name) + ("" if stage.finished else ", not finished")
            device = (stage.header.get("provenance") or {}).get("device", "–")
            rows.append([title, *facts(stage), device])
    return rows


def summarise(run: Run) -> Json:
    """Every stage with its scores, the baselines, and the fingerprints of the data."""
    tokens = run.tokens or {}
    return {
        "version": 1,
        "run": run.name,
        "bigram_bits_per_byte": run.bigram,
        "stages": {name: summarise_stage(stage) for name, stage in run.stages.items()},
        "rule_seconds": run.rule_seconds,
        "gradients": run.checked,
        "corpus_fingerprint": (run.corpus or {}).get("fingerprint"),
        "tokens_fingerprint": tokens.get("fingerprint"),
        "tokenizer_fingerprint": tokens.get("tokenizer"),
    }


def summarise_stage(stage: Stage) -> Json:
    evaluation = stage.evaluation or {}
    held_out = evaluation.get("held_out") or {}
    return {
        "parameters": stage.parameters,
        "finished": stage.finished is not None,
        "steps": stage.last.get("step"),
        "tokens": stage.last.get("tokens"),
        "seconds": stage.last.get("seconds"),
        "joules": stage.joules,
        "loss": stage.steps[-1].get("loss") if stage.steps else None,
        "tokens_per_second": stage.tokens_per_second,
        "mfu": stage.mfu,
        "validation": stage.handed_on,
        "bits_per_byte": {source: each["bits_per_byte"] for source, each in held_out.items()},
        "head_accuracy": {source: each["head_accuracy"] for source, each in held_out.items()},
        **replies_and_tasks(evaluation),
        "trajectory": evaluation.get("trajectory"),
        "fingerprint": stage.header.get("fingerprint"),
        "provenance": evaluation.get("provenance", stage.header.get("provenance")),
    }
