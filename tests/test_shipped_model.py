"""The models that lie in the repository: small, whole, and good at what they were made for."""

import json
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.evaluation.formats import short_count
from nanoeuler.inference import api
from nanoeuler.model.spec import parameter_count

MODELS = Path(__file__).resolve().parents[1] / "models"
STORIES = MODELS / "stories"
SENTENCE = (
    "The old woman put down her basket, and looked at the young man for a long time. "
    '"You have your father\'s eyes," she said at last, "but you have not his heart."\n'
)


@pytest.fixture(scope="module", params=["stories", "novels"])
def model(request):
    return api.load(MODELS / request.param, "cpu")


def test_each_takes_at_most_8_mb():
    for folder in MODELS.iterdir():
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 8e6


def test_the_report_of_one_lies_in_the_documentation_without_its_weights():
    page = (MODELS.parent / "docs" / "runs" / "2026-11-27-stories.html").read_text("utf-8")
    assert len(page) < 1e6
    config = api.load(STORIES, "cpu").config
    assert f"{short_count(parameter_count(config))} parameters" in page
    assert "prefers-color-scheme" in page


def test_transformers_has_a_class_for_stories():
    """Opened by it in interchange/test_transformers.py, where that is installed."""
    keys = json.loads((STORIES / "config.json").read_text())
    assert keys["architectures"] == ["Qwen3ForCausalLM"]
    assert "AutoModelForCausalLM" in (STORIES / "README.md").read_text()


def bits_per_byte(model, text):
    ids = np.array([model.tokenizer.end_id, *model.tokenizer.encode(text)])
    logits = model.logits(ids[:-1])
    logits -= logits.max(axis=1, keepdims=True)
    nats = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    return nats.sum() / np.log(2) / len(text.encode())


def test_a_sentence_in_the_voice_of_its_books_costs_far_less_than_its_words_in_disorder(model):
    words = SENTENCE.split()
    np.random.default_rng(1).shuffle(words)
    assert bits_per_byte(model, SENTENCE) < 2.8
    assert bits_per_byte(model, SENTENCE) < 0.75 * bits_per_byte(model, " ".join(words))


def test_it_goes_on_with_a_story(model):
    words = model.generate("The old man sat by the fire", max_tokens=60, seed=1).split()
    assert len(words) > 20
    assert len(set(words)) > len(words) // 2
