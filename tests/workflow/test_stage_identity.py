"""The part of the configuration that a stage reads, and the part that makes it run again."""

import json
import os
from pathlib import Path

import pytest
from stub_checkout import CONFIG, SOURCES

from nanoeuler.config import load
from nanoeuler.config.rules import RULES, code_fingerprint, rule_identity
from nanoeuler.corpus.sources.registry import STEPS


@pytest.fixture
def resolve(tmp_path, monkeypatch):
    """A function that resolves the trial configuration under changes such as "sft.epochs=2"."""
    monkeypatch.chdir(tmp_path)
    Path("sources.yaml").write_text(SOURCES)
    Path("config.yaml").write_text(CONFIG)
    return lambda *changes: load("config.yaml", overrides=changes)


def rerun(before: dict, after: dict) -> set[str]:
    """The stages whose identity differs; the report reads everything and is left out."""
    return {
        stage for stage in RULES if rule_identity(before, stage) != rule_identity(after, stage)
    } - {"write_report"}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("seed=2", {"pretrain", "sft", "dpo", "rl", "evaluate_model"}),
        ("pretrain.learning_rate=1e-3", {"pretrain"}),
        ("pretrain.document_mask=false", {"pretrain", "evaluate_model"}),
        ("pretrain.keep=best", {"pretrain"}),
        ("pretrain.validate_every=7", set()),
        ("sft.validate_every=7", {"sft"}),
        ("sft.rewinds=0", set()),
        ("sft.minimum_fit_share=0.1", set()),
        ("sft.learning_rate=1e-3", {"sft"}),
        ("sft.validation_share=0.1", {"fetch_instructions", "sft"}),
        ("dpo.beta=0.2", {"dpo"}),
        ("dpo.validation_share=0.1", {"fetch_preferences", "dpo"}),
        ("dpo.enabled=true", set()),
        ("sft.baseline_from_scratch=false", set()),
        ("sft.enabled=false", set()),
        ("model.layers=2", {"check_gradients", "pretrain", "sft", "dpo", "rl"}),
        (
            "tokenizer.vocab_size=1024",
            {"learn_bpe", "tokenize", "check_gradients", "pretrain", "sft", "dpo", "rl"},
        ),
        ("tokenizer.sample_bytes=5", {"learn_bpe"}),
        ("tokenizer.path=models/stories", {"learn_bpe"}),
        ("corpus.validation_share=0.1", {"build_corpus"}),
        ("corpus.name=other", {"build_corpus"}),
        ("corpus.deduplicate.threshold=0.9", {"build_corpus"}),
        ("corpus.deduplicate.books=exact", {"build_corpus"}),
        ("corpus.decontaminate=false", {"build_corpus"}),
        ("corpus.fineweb.min_score=4", {"extract_fineweb"}),
        ("corpus.fineweb.shards=2", set()),
        ("evaluate.temperature=0", {"evaluate_model"}),
        ('evaluate.tasks=[{"name": "piqa"}]', {"evaluate_model"}),
        ("device=cpu", set()),
        ("data_dir=elsewhere", set()),
        ("results_dir=elsewhere", set()),
        ("checkpoint_mirror=elsewhere", set()),
        ("run=other", set()),
        ("pretrain.micro_batch_rows=2", set()),
        ("pretrain.log_every=1", set()),
        ("pretrain.old_tokens=tokens/manifest.json", {"pretrain"}),
        ("pretrain.sample_prompt=Once", set()),
        ("pretrain.checkpoint_minutes=1", set()),
        ("slurm.account=abc", set()),
        ("max_hours=1", set()),
    ],
)
def test_a_key_reruns_the_stages_that_read_it(resolve, change, stages):
    assert rerun(resolve(), resolve(change)) == stages


def test_a_stage_sees_only_the_data_set_that_it_fetches(resolve):
    handed = json.loads(rule_identity(resolve(), "fetch_questions"))
    assert handed["sources"] == {
        "questions": {"world": {"bytes": None, "sha256": None, "url": "questions.jsonl"}}
    }
    without = json.loads(rule_identity(resolve("evaluate.questions=null"), "fetch_questions"))
    assert without["sources"] == {}


def test_a_task_is_fetched_again_when_its_own_entry_changes_and_not_for_another_limit(resolve):
    def identity(*changes: str) -> object:
        return STEPS["fetch_task"].entry(resolve(*changes), "piqa")

    assert identity('evaluate.tasks=[{"name": "piqa"}]') == identity(
        'evaluate.tasks=[{"name": "quiz"}, {"name": "piqa", "limit": 5}]'
    )
    assert identity('evaluate.tasks=[{"name": "piqa"}]') != identity(
        'evaluate.tasks=[{"name": "piqa", "url": "mine.jsonl"}]'
    )


@pytest.mark.parametrize(
    ("rule", "item", "change"),
    [
        ("fetch_instructions", "mine", "sft.instructions=mine.jsonl"),
        ("fetch_preferences", "mine", "dpo.preferences=mine.jsonl"),
        ("fetch_questions", "world", "evaluate.questions=world"),
        (
            "fetch_task",
            "own",
            'evaluate.tasks=[{"name": "own", "url": "mine.jsonl", "kind": "piqa"}]',
        ),
    ],
)
def test_a_file_of_ones_own_is_read_again_when_its_content_has_changed(resolve, rule, item, change):
    """And not for a new time alone, nor when the run's own sample writes it."""
    own = Path("questions.jsonl" if rule == "fetch_questions" else "mine.jsonl")

    def identity(**changes: object) -> object:
        return STEPS[rule].entry(resolve(change) | changes, item)

    own.write_text("one\n")
    first = identity()
    os.utime(own, (1, 1))
    assert identity() == first
    own.write_text("two\n")
    assert identity() != first
    if rule == "fetch_questions":
        assert identity(sample={"seed": 1}) == {}
        odd = {"questions": {"world": {"url": "gopher://example.org/x"}}}
        assert identity(sources=odd) == {}  # refused where it is fetched


@pytest.mark.parametrize(
    ("file", "change", "rule"),
    [
        ("other/model.safetensors", "pretrain.init_from=other", "pretrain"),
        ("other/model/model.safetensors", "sft.init_from=other", "sft"),
        ("other/tokenizer.json", "tokenizer.path=other", "learn_bpe"),
        ("other/mine.py", "rl.reward=[number, 0.5 * other/mine.py:brevity]", "rl"),
        ("other/form.json", "rl.reward=schema:other/form.json", "rl"),
    ],
)
def test_a_file_that_a_stage_starts_from_reruns_it_when_it_has_changed(resolve, file, change, rule):
    Path(file).parent.mkdir(parents=True)
    Path("sums.jsonl").touch()
    enabled = ["rl.problems=sums.jsonl"] if rule == "rl" else []
    seen = set()
    for content in ("one", "two"):
        Path(file).write_text(content)
        seen.add(rule_identity(resolve(change, *enabled), rule))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("rule", "section", "files"),
    [("extract_documents", "documents", "files"), ("extract_fineweb", "fineweb", "shards")],
)
def test_a_file_of_documents_is_read_again_when_it_has_changed(resolve, rule, section, files):
    """By its size and time, as reading a terabyte for its hash takes hours."""
    own = Path("mine.parquet")

    def identity(sha256: str | None = None, **changes: object) -> object:
        entry = {"url": "mine.parquet", "sha256": sha256}
        sources = {"sources": {section: {files: [entry]}}}
        return STEPS[rule].entry(resolve() | sources | changes, "000")

    missing = identity()
    own.write_text("one")
    first = identity()
    assert first != missing
    assert identity() == first
    own.write_text("three")
    assert identity() != first
    assert identity(sample={"seed": 1}) == missing
    assert identity("a" * 64) == {"sha256": "a" * 64}


def test_the_order_of_keys_does_not_matter(resolve):
    config = resolve()
    shuffled = dict(reversed(config.items())) | {
        "pretrain": dict(reversed(config["pretrain"].items()))
    }
    assert rule_identity(shuffled, "pretrain") == rule_identity(config, "pretrain")


def test_the_fingerprint_of_code_follows_its_content():
    assert code_fingerprint("model") == code_fingerprint("model")
    assert code_fingerprint("model") != code_fingerprint("model", "backend")
