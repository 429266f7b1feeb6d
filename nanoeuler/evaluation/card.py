"""The model card: results/<run>/README.md, written from the facts of the report, in the form that model hubs read."""

import html
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from nanoeuler.evaluation.report.background import is_non_commercial, licence_verdict, used_licences
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.headline import sentence, stage_name
from nanoeuler.evaluation.report.markup import (
    NARROW,
    count,
    duration,
    percent,
    scientific,
    short_count,
    size,
)
from nanoeuler.evaluation.report.scores import score_rows
from nanoeuler.evaluation.report.summary import summarise_gradients
from nanoeuler.log import counted

CONTROL = "sft_scratch"
"""The stage that shows what pretraining is worth: nobody wants its model."""
ENGLISH = {"gutenberg", "fineweb"}
"""Sources whose language is known; that of somebody's own text is not."""
SHAPE = ("dim", "layers", "heads", "kv_heads", "ffn", "context", "vocab_size", "mtp_heads")


def card(run: Run) -> str:
    """The model card of `run` as Markdown behind YAML front matter. Sections without facts are left out."""
    about = "Every piece of it, from the tokenizer to the gradients, is nanoeuler's own; report.html beside this file shows how it went."
    parts = [
        front_matter(run),
        f"# {run.name}\n\n{sentence(run)} {about}",
        usage(run),
        data(run),
        training(run),
        scores(run),
        limits(run),
        origin(run),
    ]
    return "\n\n".join(part for part in parts if part).replace(NARROW, " ") + "\n"


def front_matter(run: Run) -> str:
    """YAML that a hub reads: no licence but the one that the data forces, since the rest is the owner's to choose."""
    values: dict[str, Any] = {"library_name": "nanoeuler", "pipeline_tag": "text-generation"}
    if run.corpus and run.corpus["sources"].keys() <= ENGLISH:
        values["language"] = ["en"]
    restricted = {licence for licence in used_licences(run).values() if is_non_commercial(licence)}
    if restricted:
        plain = {re.sub(r"[\s_]+", "-", licence.strip()).casefold() for licence in restricted}
        values["license"] = "cc-by-nc-4.0" if plain == {"cc-by-nc-4.0"} else "other"
    if datasets := sorted(set(hub_datasets(run))):
        values["datasets"] = datasets
    values["tags"] = ["nanoeuler", *sorted(run.stages)]
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
    ]  # JSON is YAML, whatever the text
    return "\n".join(["---", *lines, "---"])


def hub_datasets(run: Run) -> Iterator[str]:
    """Names on a hub of data sets, as far as the addresses of what was used tell them."""
    sources, corpus = run.config.get("sources", {}), (run.corpus or {}).get("sources", {})
    used = [shard for shard in sources.get("fineweb", {}).get("shards", []) if "fineweb" in corpus]
    for kind, section in (("instructions", "sft"), ("preferences", "dpo")):
        settings = run.config.get(section, {})
        if settings.get("enabled"):
            used.append(sources.get(kind, {}).get(settings.get(kind), {}))
    for source in used:
        if found := re.search(
            r"huggingface\.co/datasets/([\w.-]+/[\w.-]+)", source.get("url") or ""
        ):
            yield found.group(1)


def usage(run: Run) -> str:
    there = [name for name, stage in run.stages.items() if stage.finished or stage.evaluation]
    if not there:
        return ""
    last = best_of(there)
    tuned = (run.evaluations.get(last) or {}).get("template")
    prompt = next(iter(run.config.get("evaluate", {}).get("prompts", [])), "Hello!")
    command = (
        f"chat --model {last}/model"
        if tuned
        else f"generate --model {last}/model --prompt {shlex.quote(prompt)}"
    )
    folders = ", ".join(f"`{name}/model` ({stage_name(name)})" for name in there)
    return f"""## How to use it

The models are {folders}. In the folder of this file:

```sh
nanoeuler {command}
```

```python
import nanoeuler

model = nanoeuler.load("{last}/model")
print(model.generate({prompt!r}))
```"""


def best_of(stages: list[str]) -> str:
    """Of `stages` the one whose model is the run's result."""
    return next((name for name in reversed(stages) if name != CONTROL), stages[-1])


def data(run: Run) -> str:
    licences = used_licences(run)
    if not licences:
        return ""
    amounts = {}
    for source, parts in (run.corpus or {}).get("sources", {}).items():
        amounts[source] = (
            f"{counted(parts['train']['documents'], 'document')}, {size(parts['train']['bytes'])}"
        )
    for stage, key in (("sft", "records"), ("dpo", "pairs")):
        header = run.stages[stage].header if stage in run.stages else {}
        kind = "instructions" if stage == "sft" else "preferences"
        amounts |= {
            name: counted(header[key], key[:-1])
            for name in licences
            if name.endswith(f" {kind}") and key in header
        }
    rows = [[name, amounts.get(name, "–"), licence] for name, licence in licences.items()]
    return f"## What it learned from\n\n{markdown_table(['data', 'amount', 'licence'], rows)}\n\n**{licence_verdict(licences)}**"


def training(run: Run) -> str:
    rows = []
    for name, stage in run.stages.items():
        if stage.last:
            rate, device = (
                stage.tokens_per_second,
                (stage.header.get("provenance") or {}).get("device", "–"),
            )
            done = "" if stage.finished else ", not finished"
            speed = [count(rate) if rate else "–", percent(stage.mfu) if stage.mfu else "n/a"]
            rows.append(
                [
                    stage_name(name) + done,
                    count(stage.last["step"]),
                    short_count(stage.last["tokens"]),
                    duration(stage.last["seconds"]),
                    *speed,
                    device,
                ]
            )
    if not rows:
        return ""
    shape = next(
        (evaluation["model"] for evaluation in run.evaluations.values() if evaluation.get("model")),
        run.config.get("model", {}),
    )
    described = ", ".join(f"{key} {shape[key]}" for key in SHAPE if key in shape)
    text = (
        f"A decoder of the Llama family (RMSNorm, rotary positions, grouped-query attention, SwiGLU): {described}."
        if described
        else ""
    )
    if checked := summarise_gradients(run.gradients):
        verdict = "agree with" if checked["passed"] else "DO NOT agree with"
        text += f" The gradients of the code that trained it {verdict} finite differences: of {checked['tensors']} tensors the worst is off by "
        text += f"{scientific(checked['largest_error'])}, the limit is {scientific(checked['tolerance'])}."
    return f"## Training\n\n{text}\n\n{markdown_table(['', 'steps', 'tokens', 'time', 'tokens/s', 'MFU', 'device'], rows)}"


def scores(run: Run) -> str:
    rows = score_rows(list(run.evaluations.values()), run.bigram)
    if not rows:
        return ""
    note = "Bits per byte are of held-out text; ± is one standard error; the baseline knows nothing but what stands beside it."
    return f"## Scores\n\n{markdown_table(['', *map(stage_name, run.evaluations), 'baseline'], rows)}\n\n{note}"


def limits(run: Run) -> str:
    parameters = next(
        (
            stage.header.get("parameters") or (stage.evaluation or {}).get("parameters")
            for stage in run.stages.values()
        ),
        None,
    )
    pretrain = run.stages.get("pretrain")
    read = (
        f" that has read {short_count(pretrain.last['tokens'])} tokens"
        if pretrain and pretrain.last
        else ""
    )
    what = (
        f"A model of {short_count(parameters)} parameters{read}"
        if parameters
        else "A model of this size"
    )
    lines = [
        f"- {what} writes fluent shapes without knowledge: expect sentences that read well and are wrong. Check what it says.",
        "- Nothing was done about bias, insults or private data in what it writes beyond choosing what it read. Don't put it before people who trust it.",
        "- It knows no language and no kind of instruction but those of the data above.",
    ]
    if run.evaluations:
        evaluation = run.evaluations[last := best_of(list(run.evaluations))]
        line = f"- It was measured in windows of {count(evaluation['window'])} tokens."
        if evaluation.get(
            "model"
        ):  # tuned on longer rows than it was pretrained on, a model has a longer context
            line += f" The {stage_name(last)} model sees {count(evaluation['model']['context'])} at most; what lies further back it does not see."
        lines.append(line)
    return "## Limits\n\n" + "\n".join(lines)


def origin(run: Run) -> str:
    """What it takes to make it again."""
    provenance = next(
        (
            stage.header["provenance"]
            for stage in run.stages.values()
            if stage.header.get("provenance")
        ),
        {},
    )
    commit = provenance.get("commit")
    software = ", ".join(
        f"{name} {version}" for name, version in (provenance.get("packages") or {}).items()
    )
    lines = [
        f"- code: nanoeuler {provenance.get('nanoeuler', '–')}, {f'commit `{commit}`' if commit else 'not from a git checkout'}"
        + (", with local changes" if provenance.get("dirty") else ""),
        f"- software: Python {provenance['python']}, {software}" if "python" in provenance else "",
        *(
            f"- fingerprint of {name}: `{stage.header['fingerprint']}`"
            for name, stage in run.stages.items()
            if stage.header.get("fingerprint")
        ),
    ]
    text = "## Where it comes from\n\n" + "\n".join(line for line in lines if line)
    settings = {
        key: value
        for key, value in run.config.items()
        if key not in ("sources", "data_dir", "results_dir", "slurm")
    }
    return (
        text
        + f"\n\nThe configuration, as resolved:\n\n```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```"
    )


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Cells may be HTML of the report: its text is taken."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(plain(cell) for cell in line)} |" for line in lines)


def plain(cell: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", str(cell))).split()).replace("|", "\\|")
