"""Reading held-out text token by token: sums and guesses are those of the model itself."""

import math

import fabricated
import numpy as np
import pytest
from test_evaluate import DOCUMENTS, save_tokens
from test_report import Outline

from nanoeuler.backend import make_backend
from nanoeuler.evaluation.reading import LENS_TOKENS, TOKENS, attention, read
from nanoeuler.evaluation.report.gather import gather
from nanoeuler.evaluation.report.page import page
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.tokenizer.vocabulary import build
from tests.models import ODD

TOKENIZER = Tokenizer(build([]))
SHAPES = {
    "llama": ODD | {"qk_norm": "weighted"},
    "gpt2": ODD | {"family": "gpt2", "kv_heads": 6, "tied": False},
}


@pytest.fixture(params=SHAPES)
def model(request):
    config = ModelConfig.from_dict(SHAPES[request.param])
    backend = make_backend("reference")
    parameters = initial_parameters(config, 1)
    parameters[parameters != 1] *= 6
    return Transformer(config, backend.from_host(parameters), backend)


def test_the_bits_of_all_tokens_are_those_of_the_text(model, tmp_path):
    store = TokenStore.open(save_tokens(tmp_path / "tokens", TOKENIZER, DOCUMENTS))
    texts = read(model, store, TOKENIZER, True, 20)["texts"]
    for source, documents in DOCUMENTS.items():
        sequence = store.tokens("validation", source)
        assert len(sequence) <= TOKENS
        score = bits_per_byte(model, sequence, 1, TOKENIZER, True, window=20)
        assert sum(texts[source]["bits"]) == pytest.approx(score.nats / math.log(2), rel=1e-3)
        assert "".join(texts[source]["tokens"]) == "¶\n".join([*documents, ""])


def test_the_last_row_of_the_lens_is_what_the_model_says(model, tmp_path):
    text = "The old mill stands by the river. " * 40
    store = TokenStore.open(save_tokens(tmp_path / "tokens", TOKENIZER, {"books": [text]}))
    found = read(model, store, TOKENIZER, True, 500)
    shown, lens = found["texts"]["books"]["tokens"], found["lens"]
    assert len(shown) == TOKENS
    assert "".join(shown) in text
    assert lens["tokens"] == [token.replace(" ", "␣") for token in shown[-LENS_TOKENS - 1 : -1]]
    points = 2 * model.config.layers + 1
    assert np.shape(lens["guesses"]) == np.shape(lens["shares"]) == (points, LENS_TOKENS, 3)
    start = (len(text) + 1 - TOKENS - 1) // 2
    ids = store.tokens("validation", "books")[start : start + TOKENS][None]
    positions = np.arange(TOKENS, dtype=np.int32)[None]
    hidden = model.forward(Batch(ids, positions, np.zeros_like(ids))).stream.normed
    best = model.first_logits(hidden)[-LENS_TOKENS:, :272].argmax(axis=1)
    expected = [TOKENIZER.token_bytes(id).decode("utf-8", "replace") for id in best]
    said = [guesses[0] for guesses in lens["guesses"][-1]]
    plain = [guess.replace("␣", " ").replace("⏎", "\n").replace("¶", "</s>") for guess in said]
    assert plain == expected


def test_a_model_of_another_engine_is_read_alike(model, tmp_path):
    store = TokenStore.open(save_tokens(tmp_path / "tokens", TOKENIZER, DOCUMENTS))
    backend = make_backend("cpu")
    same = Transformer(model.config, backend.from_host(model.parameters), backend)
    assert read(same, store, TOKENIZER, True, 20) == read(model, store, TOKENIZER, True, 20)


@pytest.mark.parametrize("first", [0, 12, 25])
def test_attention_is_what_mixes_the_values(model, first):
    """In two rows of 20 tokens, in each of which a document begins at slot 5."""
    T, ids = 20, np.random.default_rng(5).integers(1, 272, (2, 20)).astype(np.int32)
    starts = np.where(np.arange(T) < 5, 0, 5).astype(np.int32)[None].repeat(2, axis=0)
    positions = np.arange(T, dtype=np.int32)[None] - starts
    buffers = model.forward(Batch(ids, positions, starts), training=True)
    arrays, chosen = buffers.blocks[2].heads, range(first, min(first + LENS_TOKENS, 2 * T))
    found = attention(arrays, starts, chosen)
    compared = 0
    for head, rows in enumerate(found):
        values_BTE = arrays.value[:, :, head * model.config.kv_heads // model.config.heads]
        for token, (earlier, *shares) in zip(chosen, rows, strict=True):
            row, at = divmod(token, T)
            share_BT = np.zeros((2, T))
            share_BT.reshape(-1)[first : token + 1] = np.array(shares) / 100
            seen = slice(starts[row, at], at + 1)
            # nothing of another document
            assert share_BT[row, seen].sum() == pytest.approx(share_BT.sum())
            assert share_BT.sum() + earlier / 100 == pytest.approx(1, abs=0.1)  # in whole percent
            if first <= row * T + starts[row, at]:
                assert earlier == 0
                rounding = 0.006 * np.abs(values_BTE[row, seen]).sum()
                mixed = share_BT[row] @ values_BTE[row]
                np.testing.assert_allclose(mixed, arrays.out[row, at, head], atol=rounding)
                compared += 1
    assert len(found) == model.config.heads
    assert compared > 0


def test_the_report_colours_the_text_and_shows_the_lens(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, ("pretrain", "sft"))
    run = gather(config, folder)
    assert "token by token" not in page(run)
    for stage, first in (("pretrain", 7.9), ("sft", math.nan)):
        costs = {"tokens": [" <mill>", "s", "¶\n"], "bits": [first, 0.2, 3.4]}
        guesses = [[["␣a", "b", "c"]] * 2] * 8 + [[["␣end", "b", "c"]] * 2]
        shares = [[[0.5, 0.3, 0.1]] * 2] * 8 + [[[math.nan] * 3] * 2]
        lens = {
            "tokens": ["␣the", "s"],
            "guesses": guesses,
            "shares": shares,
            "attention": [[[[40, 60], [0, 1, 99]]] * 2] * 4,
        }
        run.evaluations[stage]["reading"] = {"texts": {"books": costs}, "lens": lens}
    html = page(run)
    text = Outline(html).text
    assert "books pretrained 3.83 bits per token <mill> s ¶" in text
    assert '<i class="b8" title="7.9"> &lt;mill&gt;</i><i class="b0" title="0.2">s</i>' in html
    assert "fine-tuned nan bits per token" in text
    assert "= 9.0 bits" in text  # log₂ 512
    assert "Logit lens" in text
    assert "layer 4, MLP ␣end ␣end" in text
    assert '"attention": [[[[40, 60], [0, 1, 99]], ' in html
    assert 'title="␣a 50\u202f%, b 30\u202f%, c 10\u202f%"' in html
