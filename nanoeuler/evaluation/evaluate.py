"""Everything that is measured of one model, as one JSON file.

    nanoeuler evaluate --config config/config.yaml --model results/demo/sft/model \\
        --tokens data/corpora/demo/tokens-512/manifest.json --questions data/questions/world.jsonl --output results/demo/evaluation/sft.json
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler import api, log, provenance
from nanoeuler.errors import UserError
from nanoeuler.evaluation.answers import Question, read_questions, read_training_answers, score_answers
from nanoeuler.evaluation.replies import continue_texts, reply_to_instructions
from nanoeuler.evaluation.style import preferred_share
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.tokenizer.shards import TokenStore

UNTUNED_TEMPLATE = "alpaca"
"""What questions are put in for a model that was tuned on no template: the score before tuning."""
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)
"""Samples of the model's own distribution: greedy replies would show a style of 51 % as one of 100 %. Each reply has draws of its own."""


def evaluate(
    config: Mapping[str, Any], model_folder: Path, tokens: Path, questions: Path | None, instructions: Path | None, device: str, gpus: int | None
) -> dict[str, Any]:
    """Evaluate the model in `model_folder`; all values are plain JSON. Raises `UserError` for files that do not fit together.

    `tokens` is the manifest of the token shards. `questions`, when given, are answered greedily and scored; `instructions`,
    the manifest of the training records, adds their commonest answer to the baselines. Of `config` the sections `evaluate`,
    `seed`, `pretrain.document_mask` and `model.context` (the window, else the model's own context) are read.
    """
    began = time.monotonic()
    settings = config["evaluate"]
    model, store = api.load(model_folder, device, gpus), TokenStore.open(tokens)
    store.check_tokenizer(model.tokenizer, model_folder)
    if not store.sources("validation"):
        raise UserError(f"{tokens}: has no held-out text; raise corpus.validation_share, or add documents to the corpus")
    asked = read_questions(questions) if questions else []
    trained_answers = read_training_answers(instructions) if instructions else None
    log.line("evaluate", repr(model))
    window = config.get("model", {}).get("context") or model.config.context
    result = {
        "version": 1,
        "stage": model.stage,
        "parameters": parameter_count(model.config),
        "template": model.template,
        "model": model.config.to_dict(),
        "settings": dict(settings),
        "window": window,
        "held_out": held_out_scores(model, store, config.get("pretrain", {}).get("document_mask", True), settings["validation_tokens"], window),
        "answers": answer_scores(model, asked, trained_answers, settings["max_new_tokens"]) if asked else None,
        "samples": samples(model, settings, config.get("seed", 1)),
        "tokens_fingerprint": store.fingerprint,
        "tokenizer_fingerprint": model.tokenizer.fingerprint,
        "model_info": model.info,
    }
    return result | {"seconds": time.monotonic() - began, "provenance": provenance.collect()}


def held_out_scores(model: api.LanguageModel, store: TokenStore, document_mask: bool, limit_tokens: int, window: int) -> dict[str, dict[str, Any]]:
    """Bits per byte and the accuracy of every head, for each source's held-out text."""
    scores = {}
    for source in store.sources("validation"):
        sequence = store.tokens("validation", source)
        with log.Progress(f"held-out {source}", min(limit_tokens, len(sequence)), "tokens") as progress:
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
        log.line("held-out", source=source, bits_per_byte=score.bits_per_byte, head_accuracy=" ".join(f"{share:.3f}" for share in score.accuracy))
        scores[source] = {
            "bits_per_byte": score.bits_per_byte,
            "nats_per_token": score.nats_per_token,
            "head_accuracy": list(score.accuracy),
            "tokens": score.tokens,
            "bytes": score.text_bytes,
            "of_tokens": len(sequence),
        }
    return scores


def answer_scores(model: api.LanguageModel, questions: list[Question], trained_answers: list[str] | None, max_tokens: int) -> dict[str, Any]:
    """The exact-answer scores of greedy replies."""
    template = model.template or UNTUNED_TEMPLATE
    prompts = [(question.instruction, question.input) for question in questions]
    replies = reply_to_instructions(model.writer, template, prompts, GREEDY, max_tokens)
    scores = {"template": template, **score_answers(questions, replies, trained_answers), "style": None}
    if greedy := preferred_share(questions, replies):
        sampled = preferred_share(questions, reply_to_instructions(model.writer, template, prompts, PLAIN, max_tokens, apart=1 << 20))
        scores["style"] = {"greedy": greedy, "sampled": sampled}
        log.line("style", preferred_ending=sampled["share"], standard_error=sampled["standard_error"], greedy=greedy["share"])
    baseline = scores["commonest_answer"]
    log.line("answers", questions=len(questions), score=scores["score"], standard_error=scores["standard_error"], stopped=scores["stopped"])
    log.line("baseline", f"always answering {baseline['answer']!r} (the commonest of {baseline['from']}) scores {baseline['score']:.4g}")
    return scores


def samples(model: api.LanguageModel, settings: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """What the model writes for the configured prompts: a reply in its template, or without one the text continued."""
    prompts, max_tokens = settings["prompts"], settings["max_new_tokens"]
    if not prompts:
        return []
    sampling = Sampling(settings["temperature"], settings["top_k"], settings["top_p"], seed)
    if model.template:
        replies = reply_to_instructions(model.writer, model.template, [(prompt, "") for prompt in prompts], sampling, max_tokens)
    else:
        replies = continue_texts(model.writer, prompts, sampling, max_tokens)
    return [
        {"prompt": prompt, "text": reply.text, "stopped": reply.stopped, "continues": model.template is None}
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
