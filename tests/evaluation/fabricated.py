"""A made-up run: the JSON files that stages leave, with numbers that a test can look for."""

import copy
import json
import math
from pathlib import Path
from typing import Any

from nanoeuler.storage.integrity import seal

PROVENANCE = {
    "nanoeuler": "0.1.0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "date": "2026-11-21T09:30:40Z",
    "python": "3.11.7",
    "packages": {"numpy": "2.4.6", "safetensors": "0.8.0"},
    "platform": "Linux-6.18-x86_64-with-glibc2.36",
    "cpu": "A Processor",
    "cores": 2,
    "device": "A Processor",
}
CONFIG: dict[str, Any] = {
    "run": "made-up",
    "seed": 1,
    "corpus": {"name": "made-up"},
    "tokenizer": {"vocab_size": 512},
    "model": {"dim": 128, "layers": 4, "context": 128},
    "sft": {"enabled": True, "instructions": "world", "learning_rate": 0.0003},
    "dpo": {"enabled": True, "preferences": "farm"},
    "evaluate": {"prompts": []},
    "sources": {"instructions": {"world": {}}, "preferences": {"farm": {}}},
}
ENGINE = {
    "engine": "cpu",
    "device": "a processor",
    "precision": "fp32",
    "tensors": 1,
    "passed": True,
    "largest_error": 1.7e-6,
    "limit": 1e-5,
}
"""What the gradient check found of the engine, without its rows."""


def fabricate(
    root: Path, stages: tuple[str, ...] = ("pretrain", "sft", "sft_scratch")
) -> tuple[dict[str, Any], Path]:
    """Write the run under `root`; returns its configuration and folder."""
    config = copy.deepcopy(CONFIG) | {
        "data_dir": str(root / "data"),
        "results_dir": str(root / "results"),
    }
    folder = root / "results" / "made-up"
    corpus = root / "data" / "corpora" / "made-up"
    aligned = evaluation("dpo", "alpaca", {"gutenberg": 1.953, "fineweb": 1.901}, 0.777, 0.983)
    aligned["model_info"]["preferences"] = {"name": "farm", "licence": "CC BY-NC 4.0"}
    told = {
        "pretrain": (
            pretraining_lines(),
            evaluation("pretrain", None, {"gutenberg": 1.734, "fineweb": 1.689}, 0.013, 0.04),
        ),
        "sft": (
            tuning_lines("sft", 0.41, 0.9),
            evaluation("sft", "alpaca", {"gutenberg": 1.912, "fineweb": 1.847}, 0.783, 0.973),
        ),
        "sft_scratch": (
            tuning_lines("sft_scratch", 0.87, 1.4),
            evaluation(
                "sft_scratch", "alpaca", {"gutenberg": 5.101, "fineweb": 4.977}, 0.247, 0.951
            ),
        ),
        "dpo": (preference_lines(), aligned),
    }
    for stage in told.keys() & stages:
        lines, measured = told[stage]
        write_metrics(folder / stage / "metrics.jsonl", lines)
        write(folder / "evaluation" / f"{stage}.json", seal(measured))
    if "dpo" in stages:
        pairs = {
            "version": 1,
            "name": "farm",
            "train": {"pairs": 1234},
            "validation": {"pairs": 87},
        }
        write(root / "data" / "preferences" / "farm" / "manifest.json", pairs)
    write(folder / "gradients.json", seal(gradients()))
    write(folder / "pipeline.json", pipeline(config))
    for rule, seconds in (
        ("build_corpus", 12.5),
        ("fetch_book/84", 2.0),
        ("fetch_book/1342", 3.0),
        ("evaluate_model/sft", 41.0),
    ):
        write_metrics(
            folder / "logs" / f"{rule}.times.jsonl",
            [attempt("x", "2026-11-21T09:30:40Z", seconds)],
        )
    attempts = [
        attempt("pretrain", "2026-11-21T09:31:40Z", seconds, status)
        for seconds, status in ((100.0, 130), (39.0, 0))
    ]
    write_metrics(
        folder / "pretrain" / "train.times.jsonl", attempts if "pretrain" in stages else []
    )
    write(corpus / "manifest.json", corpus_manifest())
    write(corpus / "tokens-512" / "manifest.json", token_manifest())
    write(
        root / "data" / "instructions" / "world" / "manifest.json",
        {"version": 1, "name": "world", "train": {"records": 2412}, "validation": {"records": 58}},
    )
    return config, folder


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_metrics(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def pretraining_lines() -> list[dict[str, Any]]:
    steps, per_step = 500, 4096
    lines: list[dict[str, Any]] = [
        {
            "stage": "pretrain",
            "started": "2026-11-21T09:30:40Z",
            "parameters": 1_049_216,
            "fingerprint": "f" * 64,
            "provenance": PROVENANCE,
            "bigram_bits_per_byte": {"gutenberg": 2.613, "fineweb": 2.547},
        }
    ]
    for step in range(10, steps + 1, 10):
        share = step / steps
        loss = 1.9 + 4.3 * math.exp(-9 * share) + 0.06 * math.sin(step * 1.7)
        rate = 3e-3 * min(1.0, step / 50) * (0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2)
        speed = 15_300 + 400 * math.sin(step)
        base = {"step": step, "tokens": step * per_step, "seconds": step * per_step / 15_300}
        lines.append(
            base
            | {
                "loss": loss,
                "learning_rate": rate,
                "gradient_norm": 0.4,
                "tokens_per_second": speed,
                "mfu": None,
            }
        )
        if step % 50 == 0:
            bits = {
                "gutenberg": 1.734 + 2.2 * math.exp(-6 * share) - 2.2 * math.exp(-6),
                "fineweb": 1.689 + 2.3 * math.exp(-6 * share) - 2.3 * math.exp(-6),
            }
            lines.append(base | {"validation": bits})
    return [
        *lines,
        {
            "finished": True,
            "step": steps,
            "tokens": steps * per_step,
            "seconds": steps * per_step / 15_300,
        },
    ]


def tuning_lines(stage: str, last_loss: float, slowness: float) -> list[dict[str, Any]]:
    steps, per_step = 180, 8192
    lines: list[dict[str, Any]] = [
        {
            "stage": stage,
            "parameters": 1_049_216,
            "records": 2412,
            "fingerprint": stage[0] * 64,
            "provenance": PROVENANCE,
        }
    ]
    for step in range(5, steps + 1, 5):
        share = step / steps
        loss = (
            last_loss
            + slowness * 2.5 * math.exp(-5 * share / slowness)
            + 0.03 * math.sin(step * 2.1)
        )
        base = {"step": step, "tokens": step * per_step, "seconds": step * per_step / 13_100}
        lines.append(
            base
            | {
                "loss": loss,
                "learning_rate": 3e-4 * (1 - share),
                "gradient_norm": 0.4,
                "tokens_per_second": 13_100.0 + step,
                "mfu": None,
            }
        )
        if step % 30 == 0:
            lines.append(base | {"validation": {"loss": loss + 0.05}})
    return [
        *lines,
        {
            "finished": True,
            "step": steps,
            "tokens": steps * per_step,
            "seconds": steps * per_step / 13_100,
        },
    ]


def preference_lines() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [
        {
            "stage": "dpo",
            "parameters": 1_049_216,
            "pairs": 1234,
            "held_out_pairs": 87,
            "fingerprint": "e" * 64,
            "provenance": PROVENANCE,
        }
    ]
    for step in range(5, 101, 5):
        base = {"step": step, "tokens": step * 4096, "seconds": step * 0.7}
        lines.append(
            base
            | {
                "loss": 0.69 - step / 400,
                "learning_rate": 1e-5,
                "gradient_norm": 0.4,
                "tokens_per_second": 5900.0,
                "mfu": 0.31,
            }
        )
        if step % 25 == 0:
            accuracy = 0.5 + step / 500
            values = {
                "loss": 0.69 - step / 500,
                "accuracy": accuracy,
                "margin": step / 90,
                "chosen_reward": step / 200,
                "rejected_reward": -step / 150,
            }
            lines.append(base | {"validation": values | {"drift": step / 3000}})
    return [*lines, {"finished": True, "step": 100, "tokens": 409_600, "seconds": 70.0}]


def attempt(stage: str, began: str, seconds: float, status: int = 0) -> dict[str, Any]:
    """A line of `times.jsonl`."""
    lasted = {"seconds": seconds, "status": status, "peak_bytes": 1_250_000_000}
    return {"stage": stage, "began": began, **lasted}


def pipeline(config: dict[str, Any]) -> dict[str, Any]:
    needs: dict[str, list[str]] = {
        "fetch_book": [],
        "clean_book": ["fetch_book"],
        "build_corpus": ["clean_book"],
        "pretrain": ["build_corpus"],
        "evaluate_model": ["pretrain", "build_corpus"],
        "write_report": ["evaluate_model", "build_corpus"],
        "all": ["write_report", "pretrain"],
    }
    jobs = {"fetch_book": 2, "clean_book": 2, "evaluate_model": 3}
    kept = {
        "version": 1,
        "config": config,
        "rules": {
            rule: {"jobs": jobs.get(rule, 1), "needs": needed} for rule, needed in needs.items()
        },
    }
    return seal(kept)


def trajectory(layers: int = 4) -> dict[str, Any]:
    """A stream that grows by a tenth and rotates by 20° in every half-step."""

    def stats(values: list[float]) -> list[dict[str, Any]]:
        return [{"mean": value, "quartiles": [0.9 * value, 1.1 * value]} for value in values]

    steps = 2 * layers
    return {
        "step_size": 1.0,
        "layers": layers,
        "tokens": 2048,
        "norm": stats([1.1**index for index in range(steps + 1)]),
        "relative_step": stats([0.3757] * steps),
        "cosine": stats([0.09] * steps),
        "stream_angle": stats([20.0] * steps),
        "step_angle": stats([20.0] * (steps - 1)),
    }


def task_scores(score: float) -> dict[str, Any]:
    quoted = {"score": score, "standard_error": 0.011}
    hellaswag = {
        "kind": "hellaswag",
        "items": 1000,
        "metric": "acc_norm",
        **quoted,
        "metrics": {"acc_norm": quoted},
        "baseline": 0.25,
    }
    single = {
        "kind": "lambada",
        "items": 1,
        "metric": "acc",
        "score": 0.0,
        "standard_error": None,
        "metrics": {},
        "baseline": 0.0,
    }
    return {
        "hellaswag": hellaswag,
        "lambada": single | {"perplexity": {"score": 412.6, "standard_error": None}},
    }


def evaluation(
    stage: str, template: str | None, bits: dict[str, float], score: float, stopped: float
) -> dict[str, Any]:
    held_out = {
        source: {
            "bits_per_byte": value,
            "nats_per_token": value * 1.4,
            "head_accuracy": [0.5, 0.31, 0.22, 0.17],
            "tokens": 40_000,
            "bytes": 81_000,
            "of_tokens": 41_000,
        }
        for source, value in bits.items()
    }
    prompts = ["Where does the river Ansel rise?", "Tell me about the glass market of Port Velis."]
    texts = {
        "pretrain": " It is said that the river comes from the hills,\n"
        "and that the people of the town go there in spring to see the",
        "sft": "The river Ansel rises in the Grey Hills.",
        "sft_scratch": "The river of the the town is the river.",
        "dpo": "It rises in the Grey Hills!",
    }
    samples = [
        {
            "prompt": prompt,
            "text": texts[stage],
            "stopped": stage != "pretrain",
            "continues": template is None,
        }
        for prompt in prompts
    ]
    return {
        "version": 1,
        "stage": stage,
        "parameters": 1_049_216,
        "template": template,
        "window": 128,
        "settings": {"temperature": 0.8, "top_p": 0.95, "validation_tokens": 40_000},
        "held_out": held_out,
        "trajectory": trajectory(),
        "tasks": task_scores(0.274 if stage == "pretrain" else 0.291),
        "chat": {
            "prompts": 58,
            "stopped": stopped,
            "mean_reply_tokens": 33.1,
            "mean_reply_words": 20.2,
            "repetition": 0.052,
            "sampled": {
                "stopped": 0.97,
                "mean_reply_tokens": 30.5,
                "mean_reply_words": 19.0,
                "repetition": 0.011,
            },
        },
        "answers": answers(score, stopped),
        "samples": samples,
        "model_info": {}
        if template is None
        else {"instructions": {"name": "alpaca", "licence": "CC BY-NC 4.0"}},
        "provenance": PROVENANCE | {"date": "2026-11-21T09:41:02Z"},
    }


def answers(score: float, stopped: float) -> dict[str, Any]:
    count = 300
    right = round(score * count)
    replies = [
        {
            "instruction": f"Which metal is mined at Harrow number {index}?",
            "input": "" if index % 3 else "Answer in a word.",
            "answer": "copper",
            "kind": "mine",
            "reply": "copper"
            if index % 10 < 10 * score
            else "the <tin> & a very long reply that goes on and on",
            "correct": index % 10 < 10 * score,
            "stopped": True,
        }
        for index in range(count)
    ]
    share = {
        "questions": count,
        "correct": right,
        "score": right / count,
        "standard_error": math.sqrt(score * (1 - score) / count),
    }
    kind = {"questions": 100, "correct": right // 3, "score": right / count, "standard_error": 0.03}
    return {
        **share,
        "template": "alpaca",
        "kinds": {"mine": kind, "river": kind, "trade": kind},
        "commonest_answer": {"answer": "copper", "score": 0.117, "from": "the questions"},
        "commonest_answer_of_kind": {"kinds": 3, "score": 0.193},
        "stopped": stopped,
        "mean_reply_tokens": 11.4,
        "repetition": 0.0,
        "style": None,
        "replies": replies,
    }


def gradients() -> dict[str, Any]:
    cases = {"linear": ["input", "weight"], "rope": ["x"], "attention": ["query", "key", "value"]}
    cases["grouped heads, K = 3, two documents a row"] = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "lm_head.weight",
    ]
    rows = [
        {
            "case": case,
            "tensor": tensor,
            "elements": 152,
            "error": 4.53e-9,
            "worst": 1.2e-8,
            "ok": True,
        }
        for case, tensors in cases.items()
        for tensor in tensors
    ]
    checked = rows[0] | {"case": "gradients, dim 128, 4 / 2 heads", "error": 1.7e-6}
    return {
        "version": 2,
        "quick": False,
        "tolerance": 1e-6,
        "passed": True,
        "largest_error": 4.53e-9,
        "rows": rows,
        "engine": ENGINE | {"rows": [checked]},
    }


def corpus_manifest() -> dict[str, Any]:
    def part(documents: int, size: int) -> dict[str, Any]:
        return {"documents": documents, "bytes": size, "sha256": "0" * 64}

    sources = {
        "gutenberg": {
            "licence": "public domain in the USA",
            "train": part(93, 2_310_000),
            "validation": part(2, 81_400),
        },
        "fineweb": {
            "licence": "ODC-By 1.0",
            "train": part(1204, 1_730_000),
            "validation": part(13, 78_100),
        },
    }
    return {"version": 1, "name": "made-up", "sources": sources, "fingerprint": "c" * 64}


def token_manifest() -> dict[str, Any]:
    def part(documents: int, size: int) -> dict[str, Any]:
        return {"documents": documents, "tokens": round(size / 2.04), "bytes": size, "shards": []}

    splits = {
        "train": {"gutenberg": part(93, 2_310_000), "fineweb": part(1204, 1_730_000)},
        "validation": {"gutenberg": part(2, 81_400), "fineweb": part(13, 78_100)},
    }
    return {
        "version": 1,
        "dtype": "uint16",
        "tokenizer": "b" * 64,
        "corpus": "c" * 64,
        "vocab_size": 512,
        "splits": splits,
        "fingerprint": "d" * 64,
    }
