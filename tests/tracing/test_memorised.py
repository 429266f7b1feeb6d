"""How much of the replies is copied, as the evaluation and the report tell it."""

import json
from pathlib import Path

import pytest

from nanoeuler.cli import main
from nanoeuler.evaluation.evaluate import copied_share
from nanoeuler.evaluation.scores import score_lines
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore


@pytest.fixture(scope="module")
def material(run):
    store, tokenizer = TokenStore.open(run.paths.tokens), Tokenizer.load(run.paths.tokenizer)
    return Path(run.paths.index), store, tokenizer


def test_the_share_counts_the_tokens_of_copied_spans(run, material):
    text = (run.folder / "texts" / "11.txt").read_text()
    copied = text[: text.index(".", 150) + 1]  # whole words, whose tokens are the same
    own = "Nobody ever wrote these words before, and so they are nowhere to be found. " * 3
    tokenizer = material[2]
    found = copied_share(*material, [copied, own, "", copied[:30]])
    total = sum(len(tokenizer.encode(text)) for text in (copied, own, copied[:30]))
    assert found == {
        "least_tokens": 50,
        "replies": 3,
        "tokens": total,
        "memorised": len(tokenizer.encode(copied)),
        "share": len(tokenizer.encode(copied)) / total,
    }


def test_without_an_index_or_a_reply_nothing_is_told(material):
    assert copied_share(None, *material[1:], ["a text"]) is None
    assert copied_share(*material, ["", ""]) is None


def test_an_evaluation_with_an_index_has_the_share_and_so_has_the_table(run, tmp_path):
    output, given = tmp_path / "pretrain.json", run.paths
    settings = {"prompts": ["The hen"], "max_new_tokens": 4, "validation_tokens": 200}
    settings |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
    arguments = ["--config", json.dumps({"evaluate": settings}), "--device", "reference"]
    arguments += ["--model", str(run.model("pretrain")), "--tokens", given.tokens]
    assert main(["evaluate", *arguments, "--index", given.index, "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["memorised"]["share"] == 0
    assert 1 <= found["memorised"]["tokens"] <= 8
    titles = {line.row[0]: line.row[1] for line in score_lines([found], {})}
    (title,) = (each for each in titles if "copied" in each)
    assert title == "replies' tokens in runs of 50 copied from the text"
    assert titles[title].startswith("0")
