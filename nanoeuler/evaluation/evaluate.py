"""Everything that is measured of one model, as one JSON file.

    nanoeuler evaluate --config config/config.yaml --model results/demo/sft/model \\
        --tokens data/corpora/demo/tokens-512/manifest.json --questions data/questions/world.jsonl --output results/demo/evaluation/sft.json
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoeuler import api, log, provenance
from nanoeuler.errors import UserError
from nanoeuler.evaluation import trajectory
from nanoeuler.evaluation.answers import (
    Question,
    read_questions,
    read_records,
    read_training_answers,
    score_answers,
)
from nanoeuler.evaluation.replies import continue_texts, describe_replies, reply_to_instructions
from nanoeuler.evaluation.style import preferred_share
from nanoeuler.evaluation.tasks import score_task
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.tokenizer.shards import TokenStore

UNTUNED_TEMPLATE = "alpaca"
"""What questions are put in for a model that was tuned on no template: the score before tuning."""
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)
"""Samples of the model's own distribution: greedy replies would show a style of 51 % as one of 100 %. Each reply has draws of its own."""

APART = 1 << 20
"""Positions between two prompts, for the sampler: more than any reply has, so that each has draws of its own."""


@dataclass(frozen=True)
class Material:
    """What a model is measured on; whatever is None is left out."""

    tokens: Path | None = None  # manifest of the token shards: bits per byte, head accuracy
    questions: Path | None = None  # answered greedily and compared with the one right answer
    instructions: Path | None = (
        None  # manifest of the instructions: held-out ones are answered, and the commonest answer is a baseline
    )
    tasks: tuple[Path, ...] = ()  # manifests of multiple-choice tasks


def evaluate(
    config: Mapping[str, Any], model_folder: Path, material: Material, device: str, gpus: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Evaluate the model in `model_folder`: its scores, and a record for each item of every task and each question, all plain JSON values.

    Raises `UserError` for files that do not fit together. Of `config` the sections `evaluate`, `seed`, `pretrain.document_mask` and
    `model.context` (the window, else the model's own context) are read.
    """
    began = time.monotonic()
    settings, seed = config["evaluate"], config.get("seed", 1)
    model = api.load(model_folder, device, gpus)
    store = open_tokens(material.tokens, model, model_folder) if material.tokens else None
    asked = read_questions(material.questions) if material.questions else []
    trained_answers = (
        read_training_answers(material.instructions) if material.instructions else None
    )
    log.line("evaluate", repr(model))
    window = config.get("model", {}).get("context") or model.config.context
    document_mask = config.get("pretrain", {}).get("document_mask", True)
    tasks, items = task_scores(
        model,
        material.tasks,
        {task["name"]: task.get("limit") for task in settings.get("tasks", [])},
        window,
        seed,
    )
    answers = (
        answer_scores(model, asked, trained_answers, settings["max_new_tokens"]) if asked else None
    )
    result = {
        "version": 1,
        "stage": model.stage,
        "parameters": parameter_count(model.config),
        "template": model.template,
        "model": model.config.to_dict(),
        "settings": dict(settings),
        "window": window,
        "held_out": held_out_scores(
            model, store, document_mask, settings["validation_tokens"], window
        )
        if store
        else {},
        "trajectory": trajectory.measure(
            model.transformer, store, document_mask, window, model.tokenizer.end_id
        )
        if store
        else None,
        "tasks": tasks,
        "chat": chat_scores(model, material.instructions, settings, seed),
        "answers": answers,
        "samples": samples(model, settings, seed),
        "tokens_fingerprint": store.fingerprint if store else None,
        "tokenizer_fingerprint": model.tokenizer.fingerprint,
        "model_info": model.info,
    }
    items += [
        {"task": "questions", "id": str(number)} | reply
        for number, reply in enumerate(answers["replies"] if answers else [], 1)
    ]
    return result | {"seconds": time.monotonic() - began, "provenance": provenance.collect()}, items


def open_tokens(manifest: Path, model: api.LanguageModel, model_folder: Path) -> TokenStore:
    store = TokenStore.open(manifest)
    store.check_tokenizer(model.tokenizer, model_folder)
    if not store.sources("validation"):
        raise UserError(
            f"{manifest}: has no held-out text; raise corpus.validation_share, or add documents to the corpus"
        )
    return store


def task_scores(
    model: api.LanguageModel,
    manifests: tuple[Path, ...],
    limits: Mapping[str, int | None],
    window: int,
    seed: int,
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The scores of each task by its name, and the records of all their items."""
    scores, items = {}, []
    for manifest in manifests:
        score, records = score_task(model, manifest, window, limits, seed)
        if score["name"] in scores:
            raise UserError(f"{manifest}: a second task named {score['name']}; give each name once")
        scores[score["name"]] = score
        items += records
    return scores, items


def chat_scores(
    model: api.LanguageModel, instructions: Path | None, settings: Mapping[str, Any], seed: int
) -> dict[str, Any] | None:
    """How the replies to the first `chat_prompts` held-out instructions end, and how much they repeat: greedy ones, and under
    `sampled` those drawn as in the report's samples. None without instructions."""
    prompts, max_tokens = settings.get("chat_prompts", 0), settings["max_new_tokens"]
    if instructions is None or not prompts:
        return None
    records = read_records(
        instructions.with_name("validation.jsonl"), required=("instruction",), optional=("input",)
    )
    records = [record for record in records if not record.get("earlier")][
        :prompts
    ]  # a conversation's later turn makes no sense alone
    if not records:
        return None
    template = model.template or UNTUNED_TEMPLATE
    asked = [(record["instruction"], record.get("input", "")) for record in records]
    greedy = describe_replies(
        reply_to_instructions(model.writer, template, asked, GREEDY, max_tokens)
    )
    sampled = describe_replies(
        reply_to_instructions(
            model.writer, template, asked, sampling_of(settings, seed), max_tokens, apart=APART
        )
    )
    log.line("chat", prompts=len(records), **greedy)
    log.line("chat", "sampled", **sampled)
    return {"prompts": len(records), **greedy, "sampled": sampled}


def sampling_of(settings: Mapping[str, Any], seed: int) -> Sampling:
    return Sampling(settings["temperature"], settings["top_k"], settings["top_p"], seed)


def held_out_scores(
    model: api.LanguageModel, store: TokenStore, document_mask: bool, limit_tokens: int, window: int
) -> dict[str, dict[str, Any]]:
    """Bits per byte and the accuracy of every head, for each source's held-out text."""
    scores = {}
    for source in store.sources("validation"):
        sequence = store.tokens("validation", source)
        with log.Progress(
            f"held-out {source}", min(limit_tokens, len(sequence)), "tokens"
        ) as progress:
            score = bits_per_byte(
                model.transformer,
                sequence,
                store.bytes("validation", source),
                model.tokenizer,
                document_mask,
                limit_tokens,
                heads=model.config.mtp_heads,
                window=window,
                advance=progress.update,
            )
        log.line(
            "held-out",
            source=source,
            bits_per_byte=score.bits_per_byte,
            head_accuracy=" ".join(f"{share:.3f}" for share in score.accuracy),
        )
        scores[source] = {
            "bits_per_byte": score.bits_per_byte,
            "nats_per_token": score.nats_per_token,
            "head_accuracy": list(score.accuracy),
            "tokens": score.tokens,
            "bytes": score.text_bytes,
            "of_tokens": len(sequence),
        }
    return scores


def answer_scores(
    model: api.LanguageModel,
    questions: list[Question],
    trained_answers: list[str] | None,
    max_tokens: int,
) -> dict[str, Any]:
    """The exact-answer scores of greedy replies."""
    template = model.template or UNTUNED_TEMPLATE
    prompts = [(question.instruction, question.input) for question in questions]
    replies = reply_to_instructions(model.writer, template, prompts, GREEDY, max_tokens)
    scores = {
        "template": template,
        **score_answers(questions, replies, trained_answers),
        "style": None,
    }
    if greedy := preferred_share(questions, replies):
        sampled = preferred_share(
            questions,
            reply_to_instructions(model.writer, template, prompts, PLAIN, max_tokens, apart=APART),
        )
        scores["style"] = {"greedy": greedy, "sampled": sampled}
        log.line(
            "style",
            preferred_ending=sampled["share"],
            standard_error=sampled["standard_error"],
            greedy=greedy["share"],
        )
    baseline = scores["commonest_answer"]
    log.line(
        "answers",
        questions=len(questions),
        score=scores["score"],
        standard_error=scores["standard_error"],
        stopped=scores["stopped"],
    )
    log.line(
        "baseline",
        f"always answering {baseline['answer']!r} (the commonest of {baseline['from']}) scores {baseline['score']:.4g}",
    )
    return scores


def samples(
    model: api.LanguageModel, settings: Mapping[str, Any], seed: int
) -> list[dict[str, Any]]:
    """What the model writes for the configured prompts: a reply in its template, or without one the text continued."""
    prompts, max_tokens = settings["prompts"], settings["max_new_tokens"]
    if not prompts:
        return []
    sampling = sampling_of(settings, seed)
    if model.template:
        replies = reply_to_instructions(
            model.writer, model.template, [(prompt, "") for prompt in prompts], sampling, max_tokens
        )
    else:
        replies = continue_texts(model.writer, prompts, sampling, max_tokens)
    return [
        {
            "prompt": prompt,
            "text": reply.text,
            "stopped": reply.stopped,
            "continues": model.template is None,
        }
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
