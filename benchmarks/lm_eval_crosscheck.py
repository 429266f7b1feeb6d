"""Compare our choices with those of lm-evaluation-harness, item by item.

    nanoeuler evaluate --config C --model MODEL --tasks data/tasks/piqa/manifest.json … \\
        --items items.jsonl --output scores.json
    python benchmarks/lm_eval_crosscheck.py --model MODEL --items items.jsonl \\
        --task piqa piqa.jsonl --task hellaswag hellaswag.jsonl

The second command runs in an environment of its own (pip install lm-eval torch transformers) and
shares no code with the first. It reads the task files again; prompts come from the harness's task
definitions, tokens from Hugging Face's tokenizer, log-likelihoods from transformers' Llama in
float32 through the harness's model class, and `acc` and `acc_norm` from the harness. Only the data
sets are local files, converted to the official columns where they have llm-foundry's. Items that
our evaluation skipped are left out: they have a choice longer than the window, on which the harness
fails. Prints one line per task, and exits with 1 when fewer than 99 % of the choices are equal.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

TASKS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "arc_challenge": ("arc/arc_challenge.yaml", "test"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "blimp": ("blimp/_template_yaml", "train"),
    "lambada": ("lambada/lambada_openai.yaml", "test"),
}
"""Kind of task → the harness's definition, and the split that it measures on."""

LEAST_AGREEMENT = 0.99


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, type=Path, help="model folder")
    parser.add_argument("--items", required=True, type=Path, help="our choices, JSON lines")
    parser.add_argument(
        "--task",
        required=True,
        nargs=2,
        action="append",
        metavar=("KIND", "FILE"),
        help="a task as our evaluation was given it",
    )
    parser.add_argument("--window", type=int, help="tokens that the model sees (default: context)")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    ours = [json.loads(line) for line in options.items.read_text().splitlines()]
    model = harness_model(options.model, options.window)
    agreed = True
    for kind, file in options.task:
        records = {record["id"]: record for record in ours if record["task"] == kind}
        agreed &= compare(kind, read_rows(Path(file)), records, model)
    return 0 if agreed else 1


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The numbered records of a file of JSON lines, which may be compressed, or of all such files
    in a zip archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".jsonl"))
            text = "\n".join(archive.read(name).decode() for name in names)
    else:
        text = (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8").read()
    return [
        json.loads(line) | {"number": number}
        for number, line in enumerate(filter(str.strip, text.split("\n")), 1)
    ]


def harness_model(folder: Path, window: int | None) -> Any:
    """The harness's class for Hugging Face models with our weights; `</s>` stands before every
    text, as in training."""
    import torch
    from lm_eval.models.huggingface import HFLM
    from tokenizers.processors import TemplateProcessing
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="</s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", tokenizer.eos_token_id)]
    )
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    length = window or model.config.max_position_embeddings
    return HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        device="cpu",
        max_length=length,
        batch_size=16,
        add_bos_token=True,
    )


def official(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    """A record in the columns that the harness's task definition reads."""
    if kind == "hellaswag" and "ctx_a" not in row:
        return {
            "activity_label": row["activity_label"],
            "ctx_a": row["ctx"],
            "ctx_b": "",
            "endings": row["endings"],
            "label": str(row["label"]),
        }
    if kind == "piqa" and "query" in row:
        return {
            "goal": row["query"].removeprefix("Question: ").rstrip(),
            "sol1": row["choices"][0],
            "sol2": row["choices"][1],
            "label": row["gold"],
        }
    if kind.startswith("arc") and "query" in row:
        labels = list("ABCDEFGH"[: len(row["choices"])])
        choices = {"text": row["choices"], "label": labels}
        return {
            "question": row["query"].removeprefix("Question: ").rstrip(),
            "choices": choices,
            "answerKey": labels[row["gold"]],
        }
    if kind == "winogrande" and "context_options" in row:
        first, second = row["context_options"]
        pairs = zip(first, second, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return {
            "sentence": f"{first[:same]}_ {row['continuation']}",
            "option1": first[same:],
            "option2": second[same:],
            "answer": str(row["gold"] + 1),
        }
    if kind == "lambada" and "continuation" in row:
        return {"text": f"{row['context']} {row['continuation']}"}
    return {key: value for key, value in row.items() if key != "number"}


def name_of(kind: str, row: dict[str, Any]) -> str:
    """The id that our evaluation gives this record."""
    if kind == "blimp":
        return f"{row['UID']}/{row['pairID']}"
    return str(next((row[key] for key in ("id", "ind", "qID") if key in row), row["number"]))


def compare(
    kind: str, rows: list[dict[str, Any]], ours: dict[str, dict[str, Any]], model: Any
) -> bool:
    """Run the harness over the rows that we have scored; whether its choices are ours."""
    import lm_eval.tasks
    import numpy as np
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks._yaml_loader import load_yaml

    definition, split = TASKS[kind]
    rows = [row for row in rows if name_of(kind, row) in ours]
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / definition) | {"task": kind}
    dataset = {split: Dataset.from_list([official(kind, row) for row in rows])}
    config["custom_dataset"] = lambda **_: dataset
    for key in ("training_split", "validation_split", "tag"):
        config.pop(key, None)
    config["test_split"] = split
    task = ConfigurableTask(config=config)
    results = simple_evaluate(model=model, tasks=[task], log_samples=True, bootstrap_iters=0)
    samples = sorted(results["samples"][kind], key=lambda sample: sample["doc_id"])
    equal: dict[str, list[bool]] = {}
    ours_right: dict[str, list[bool]] = {}
    theirs_right: dict[str, list[bool]] = {}
    furthest = 0.0
    for row, sample in zip(rows, samples, strict=True):
        record = ours[name_of(kind, row)]
        theirs = np.array([float(answer[0]) for answer in sample["filtered_resps"]])
        furthest = max(furthest, float(np.abs(theirs - np.array(record["loglikelihoods"])).max()))
        for metric, right in record["correct"].items():
            if metric not in sample:
                continue
            ours_right.setdefault(metric, []).append(right)
            theirs_right.setdefault(metric, []).append(bool(sample[metric]))
            if kind == "lambada":
                same = right == bool(sample["acc"])
            else:
                lengths = np.array([len(choice) for choice in task.doc_to_choice(sample["doc"])])
                scores = theirs / lengths if metric == "acc_norm" else theirs
                same = int(np.argmax(scores)) == record["choice"][metric]
            equal.setdefault(metric, []).append(same)
    for metric, same in equal.items():
        means = (
            f"ours {np.mean(ours_right[metric]):.4f}, theirs {np.mean(theirs_right[metric]):.4f}"
        )
        print(f"{kind} {metric}: {sum(same)} of {len(same)} choices equal; {means}; ", end="")
        print(f"log-likelihoods differ by at most {furthest:.2g} nats", flush=True)
    return all(np.mean(same) >= LEAST_AGREEMENT for same in equal.values())


if __name__ == "__main__":
    sys.exit(main())
