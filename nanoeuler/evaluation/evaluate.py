"""Measure one model: everything that is known of it, as one JSON file.

    nanoeuler evaluate --config config/config.yaml --model results/demo/sft/model \\
        --tokens data/corpora/demo/tokens-512/manifest.json \\
        --questions data/questions/world.jsonl --output results/demo/evaluation/sft.json
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.evaluation import reading, trajectory
from nanoeuler.evaluation.answers import (
    Question,
    Reply,
    describe_replies,
    preferred_share,
    read_questions,
    read_records,
    read_training_answers,
    score_answers,
    write_replies,
)
from nanoeuler.evaluation.tasks import Task, read_task, score_task, summarise_group
from nanoeuler.inference import api
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.likelihood import Share, bits_per_byte
from nanoeuler.model.spec import parameter_count
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.system import provenance
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.tracing.index import MEMORISED, Index, memorised
from nanoeuler.training.distributed.group import ALONE, Group
from nanoeuler.training.parents import UNTUNED_TEMPLATE

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)
"""The model's own distribution: greedy replies would show a style of 51 % as one of 100 %."""
SPACING = 1 << 20
"""Positions between two prompts for the sampler: more than any reply has, so that each reply has
draws of its own."""

OWN_PROMPTS = 3
"""Documents of each source, and instructions, that give prompts where none are configured."""
OPENING_WORDS = 6
"""Words of a document that a model goes on with."""
OPENING_TOKENS = 1_000_000
"""Tokens of a source in which its first documents are looked for."""

Json = dict[str, Any]

LONGEST_WINDOW = 8192
"""Tokens that are read together where no configuration says: an imported model's context may be
longer than any memory."""


@dataclass(frozen=True)
class Material:
    """The files that a model is measured on; a measurement whose file is None is left out."""

    tokens: Path | None = None
    """Manifest of the token shards: bits per byte, head accuracy, trajectory."""
    questions: Path | None = None
    """Questions that are answered greedily and compared with the one right answer."""
    instructions: Path | None = None
    """Manifest of the instructions: held-out ones are answered, and the commonest answer to the
    others is a baseline."""
    index: Path | None = None
    """Manifest of the index of the tokens: how much of the replies is copied from the text."""
    tasks: tuple[Path, ...] = ()
    """Manifests of tasks."""


def evaluate(
    config: Mapping[str, Any],
    model_folder: Path,
    material: Material,
    backend: "Backend",
    group: Group = ALONE,
    quantize: str | None = None,
) -> tuple[Json, list[Json]]:
    """Evaluate the model in `model_folder`: its scores, and a record for each item of every task
    and for each question.

    Reads `evaluate`, `seed`, `pretrain.document_mask` and `model.context` of `config`; the latter
    is the window, by default the model's own context, up to LONGEST_WINDOW. The ranks of `group`
    share the work, and rank 0 returns what one alone would. `quantize`: see `api.load`. Raises
    `UserError` for files that do not fit together.
    """
    began = time.monotonic()
    settings = config["evaluate"]
    seed = config.get("seed", 1)
    model = api.load_on(backend, model_folder, quantize=quantize)
    store = open_tokens(material.tokens, model, model_folder) if material.tokens else None
    asked = read_questions(material.questions) if material.questions else []
    instructions = material.instructions
    trained_answers = read_training_answers(instructions) if instructions else None
    chat_prompts = held_out_prompts(instructions, settings.get("chat_prompts", 0))
    read_tasks = [(manifest, read_task(manifest)) for manifest in material.tasks]
    require_one_each(read_tasks)
    if group.rank == 0:
        group.admit()
    share = group.share
    log.line("evaluate", repr(model))
    window = config.get("model", {}).get("context") or min(model.config.context, LONGEST_WINDOW)
    document_mask = config.get("pretrain", {}).get("document_mask", True)
    tasks, items = task_scores(model, read_tasks, settings, window, seed, share)
    answers = None
    if asked:
        most = settings["max_new_tokens"]
        answers = answer_scores(model, asked, trained_answers, most, share)
        items += [
            {"task": "questions", "id": str(number)} | reply
            for number, reply in enumerate(answers["replies"], 1)
        ]
    held_out, path, read = {}, None, None
    if store:
        limit = settings["validation_tokens"]
        held_out = held_out_scores(model, store, document_mask, limit, window, share)
    chat, replies = chat_scores(model, chat_prompts, settings, seed, share)
    if group.rank:  # the rest takes rank 0 seconds
        group.heed()
        return {}, []
    if store:
        end_id = model.tokenizer.end_id
        path = trajectory.measure(model.transformer, store, document_mask, window, end_id)
        read = reading.read(model.transformer, store, model.tokenizer, document_mask, window)
    sampled = samples(model, settings, seed, store, instructions)
    replies += [sample["text"] for sample in sampled]
    copied = copied_share(material.index, store, model.tokenizer, replies)
    result = {
        "version": 1,
        "stage": model.stage,
        "parameters": parameter_count(model.config),
        "template": model.template,
        "model": model.config.to_dict(),
        **({"quantized": model.quantized} if model.quantized else {}),
        "settings": dict(settings),
        "window": window,
        "held_out": held_out,
        "trajectory": path,
        "reading": read,
        "tasks": tasks,
        "chat": chat,
        "answers": answers,
        "samples": sampled,
        **({"memorised": copied} if copied else {}),
        "tokens_fingerprint": store.fingerprint if store else None,
        "tokenizer_fingerprint": model.tokenizer.fingerprint,
        "model_info": model.info,
    }
    made = provenance.collect(backend.device_name)
    return result | {"seconds": time.monotonic() - began, "provenance": made}, items


def open_tokens(manifest: Path, model: api.LanguageModel, model_folder: Path) -> TokenStore:
    store = TokenStore.open(manifest)
    store.check_tokenizer(model.tokenizer, model_folder)
    store.held_out_sources()  # refuses a corpus without any
    return store


def require_one_each(tasks: Sequence[tuple[Path, Task]]) -> None:
    """Raise `UserError` when two tasks, beside their manifests, have one name."""
    names = {described.get("group") for _, (described, _) in tasks}
    for manifest, (described, _) in tasks:
        if described["name"] in names:
            raise UserError(
                f"{manifest}: a second task named {described['name']}; give each name once"
            )
        names.add(described["name"])


def task_scores(
    model: api.LanguageModel,
    tasks: Sequence[tuple[Path, Task]],
    settings: Mapping[str, Any],
    window: int,
    seed: int,
    share: Share,
) -> tuple[dict[str, Json], list[Json]]:
    """The scores of each task and group by its name, and the records of all their items."""
    scores: dict[str, Json] = {}
    grouped: defaultdict[str, dict[str, Json]] = defaultdict(dict)
    items = []
    for manifest, task in tasks:
        score, records = score_task(model, manifest, task, window, settings, seed, share)
        scores[score["name"]] = score
        if score["group"]:
            grouped[score["group"]][score["name"]] = score
        items += records
    groups = {name: summarise_group(members) for name, members in grouped.items()}
    for name, group in groups.items():
        shown = {key: group[key] for key in ("items", "score", "standard_error")}
        shown |= {control: each["score"] for control, each in group["controls"].items()}
        log.line(name, tasks=len(group["tasks"]), **shown)
    return groups | scores, items


def held_out_prompts(instructions: Path | None, limit: int) -> list[tuple[str, str]]:
    """The first `limit` held-out instructions, each with its input."""
    if instructions is None or not limit:
        return []
    path = RecordFolder(instructions, "instructions").file("validation")
    records = read_records(path, required=("instruction",), optional=("input",))
    # The later turn of a conversation makes no sense alone.
    records = [record for record in records if not record.get("earlier")][:limit]
    return [(record["instruction"], record.get("input", "")) for record in records]


def chat_scores(
    model: api.LanguageModel,
    asked: list[tuple[str, str]],
    settings: Mapping[str, Any],
    seed: int,
    share: Share,
) -> tuple[Json | None, list[str]]:
    """How the replies to the instructions `asked` end, and how much they repeat: greedy ones, and
    under `sampled` those drawn as in the report's samples. None without instructions. Also the
    texts of all."""
    if not asked:
        return None, []
    texts: list[str] = []

    def describe(sampling: Sampling, spacing: int = 0) -> Json:
        template, most = model.template or UNTUNED_TEMPLATE, settings["max_new_tokens"]
        replies = write_replies(model.writer, template, asked, sampling, most, spacing, share)
        texts.extend(reply.text for reply in replies)
        return describe_replies(replies)

    greedy = describe(GREEDY)
    sampled = describe(sampling_of(settings, seed), SPACING)
    log.line("chat", prompts=len(asked), **greedy)
    log.line("chat", "sampled", **sampled)
    return {"prompts": len(asked), **greedy, "sampled": sampled}, texts


def copied_share(
    index: Path | None, store: TokenStore | None, tokenizer: Tokenizer, replies: Sequence[str]
) -> Json | None:
    """The share of the replies' tokens in long spans that stand word for word in the text for
    training. None without an index, or without a reply.

    Raises `UserError` for an index of other tokens.
    """
    if index is None or store is None:
        return None
    parts = [part for part in Index(index.parent, store).parts if part.split == "train"]
    encoded = [tokenizer.encode(reply) for reply in replies if reply]
    total = sum(map(len, encoded))
    if not total:
        return None
    found = sum(memorised(parts, ids) for ids in encoded)
    told: Json = {
        "replies": len(encoded),
        "tokens": total,
        "memorised": found,
        "share": found / total,
    }
    log.line("memorised", least_tokens=MEMORISED, **told)
    return {"least_tokens": MEMORISED, **told}


def sampling_of(settings: Mapping[str, Any], seed: int) -> Sampling:
    return Sampling(settings["temperature"], settings["top_k"], settings["top_p"], seed)


def held_out_scores(
    model: api.LanguageModel,
    store: TokenStore,
    document_mask: bool,
    limit_tokens: int,
    window: int,
    share: Share,
) -> dict[str, Json]:
    """Bits per byte and the accuracy of every head, for each source's held-out text."""
    scores = {}
    for source in store.sources("validation"):
        sequence = store.tokens("validation", source)
        total = min(limit_tokens, len(sequence))
        with log.Progress(f"held-out {source}", total, "tokens") as progress:
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
                share=share,
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
    share: Share,
) -> Json:
    """The exact-answer scores of greedy replies."""
    template = model.template or UNTUNED_TEMPLATE
    prompts = [(question.instruction, question.input) for question in questions]

    def reply(sampling: Sampling, spacing: int = 0) -> list[Reply]:
        return write_replies(model.writer, template, prompts, sampling, max_tokens, spacing, share)

    replies = reply(GREEDY)
    scores = {
        "template": template,
        **score_answers(questions, replies, trained_answers),
        "style": None,
    }
    greedy = preferred_share(questions, replies)
    sampled = greedy and preferred_share(questions, reply(PLAIN, SPACING))
    if greedy and sampled:
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
    constant = f"{baseline['answer']!r} (the commonest of {baseline['from']})"
    log.line("baseline", f"always answering {constant} scores {baseline['score']:.4g}")
    return scores


def samples(
    model: api.LanguageModel,
    settings: Mapping[str, Any],
    seed: int,
    store: TokenStore | None,
    instructions: Path | None,
) -> list[Json]:
    """Replies to the configured prompts, or continuations by a model without a template.

    Where no prompts are configured, held-out documents and instructions give some.
    """
    prompts, max_tokens = settings["prompts"], settings["max_new_tokens"]
    if not prompts:
        asked = held_out_prompts(instructions, OWN_PROMPTS)
        prompts = [*openings(store, model.tokenizer), *(instruction for instruction, _ in asked)]
    if not prompts:
        return []
    asked = [(prompt, "") for prompt in prompts]
    sampling = sampling_of(settings, seed)
    replies = write_replies(model.writer, model.template, asked, sampling, max_tokens)
    return [
        {
            "prompt": prompt,
            "text": reply.text,
            "stopped": reply.stopped,
            "continues": model.template is None,
        }
        for prompt, reply in zip(prompts, replies, strict=True)
    ]


def openings(store: TokenStore | None, tokenizer: Tokenizer) -> list[str]:
    """The first words of some held-out documents of each source."""
    if store is None:
        return []
    found = []
    for source in store.sources("validation"):
        tokens = np.asarray(store.tokens("validation", source)[:OPENING_TOKENS])
        for start in np.flatnonzero(tokens == tokenizer.end_id)[:OWN_PROMPTS]:
            document = itertools.takewhile(
                lambda token: token != tokenizer.end_id, tokens[start + 1 : start + 64].tolist()
            )
            words = tokenizer.decode(document).split()
            found.append(" ".join(words[:OPENING_WORDS]))
    return list(dict.fromkeys(filter(None, found)))
