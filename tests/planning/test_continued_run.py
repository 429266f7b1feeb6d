"""`nanoeuler train --from`: a model that is there goes on learning on one's own text."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.cli.greeting import next_steps
from nanoeuler.cli.own_text import prepare
from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model
from nanoeuler.planning import continued_run, own_run
from nanoeuler.planning.own_run import Speed
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.stages.pretrain import with_old
from tests.models import GPT2, LLAMA, PROSE, model_in

ROOT = Path(__file__).parents[2]
STORIES = ROOT / "models/stories"


def own_text(paths: Paths) -> list[str]:
    return [str(file) for file, _ in OWN_TEXT.paths(paths.config)]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with a text, on a machine of a known speed."""
    monkeypatch.chdir(tmp_path)
    speed = Speed(1e-4, 0.0), "cpu"
    monkeypatch.setattr(continued_run, "speed_here", lambda start: speed)
    Path("novel.txt").write_text(PROSE)
    return tmp_path


def configured(start: Path) -> dict:
    """The configuration that `train novel.txt --from` writes."""
    file = Path("results/novel/config.yaml")
    prepare(file, "novel", ["novel.txt"], 10, "nanoeuler train novel.txt --from it", start)
    return load(file)


def by_hand(config: dict) -> Path:
    """Run the stages up to pretraining; returns the model's folder."""
    paths = Paths(config)
    tokens, tokenizer = ["--tokens", paths.tokens], ["--tokenizer", paths.tokenizer]
    corpus = ["--corpus", paths.corpus_manifest]
    for stage, command in {
        "build_corpus": ["assemble", "--own", *own_text(paths), "--output", paths.corpus],
        "learn_bpe": ["bpe", *corpus, "--output", paths.tokenizer],
        "tokenize": ["tokenize", *corpus, *tokenizer, "--output", str(Path(paths.tokens).parent)],
        "pretrain": ["pretrain", *tokens, *tokenizer, "--output", paths.stage("pretrain")],
    }.items():
        device = ["--device", "reference"] if stage == "pretrain" else []
        assert main([*command, "--config", json.dumps(config), *device]) == 0
    return Path(paths.model_folder("pretrain"))


@pytest.mark.parametrize(
    ("fields", "template"),
    [(LLAMA, None), (LLAMA, "alpaca"), (GPT2, None), (LLAMA | {"vocab_size": 320}, None)],
    ids=["llama", "tuned", "gpt2", "rows that no token has"],
)
def test_any_model_goes_on_with_its_own_tokenizer(here, caplog, fields, template):
    start = model_in(here / "parent", fields, template)
    config = configured(start)
    said = "was tuned to answer; it goes on with plain text" in caplog.text
    assert said == (template is not None)
    model = load_model(by_hand(config))
    before = load_model(start)
    assert model.config == before.config
    assert model.template is None
    theirs, ours = (Tokenizer.load(each.tokenizer_path) for each in (before, model))
    assert ours.fingerprint == theirs.fingerprint
    assert not np.array_equal(model.parameters, before.parameters)
    lines = map(json.loads, Path("results/novel/pretrain/metrics.jsonl").read_text().splitlines())
    scores = [line["validation"]["novel"] for line in lines if "validation" in line]
    assert min(scores[1:]) < scores[0], "the first is that of the model that goes on"


def test_old_text_that_is_at_hand_is_mixed_in(here, caplog):
    """A run goes on from another run's model, whose tokens lie in data/."""
    first = configured(model_in(here / "parent", LLAMA))
    assert first["pretrain"]["old_tokens"] is None, "nobody knows what that one has learned"
    by_hand(first)
    Path("diary.txt").write_text(PROSE.replace("ferry", "train"))
    file = Path("results/diary/config.yaml")
    prepare(file, "diary", ["diary.txt"], 10, "it", Path("results/novel"))
    config = load(file)
    old = Path(Paths(first).tokens)
    assert config["pretrain"]["old_tokens"] == str(old)
    by_hand(config)
    header = json.loads(Path("results/diary/pretrain/metrics.jsonl").read_text().partition("\n")[0])
    own = len(TokenStore.open(Path(Paths(config).tokens)).tokens("train"))
    assert header["training_tokens"] == pytest.approx(1.3 * own, rel=0.05)
    assert config["pretrain"]["tokens"] == pytest.approx(3 * 1.3 * own, rel=0.1)
    assert list(header["bigram_bits_per_byte"]) == ["diary"], "measured is one's own text alone"
    shutil.rmtree(old.parent)
    prepare(file, "diary", ["diary.txt"], 11, "it again", Path("results/novel"))
    assert load(file)["pretrain"]["old_tokens"] is None


def test_old_text_is_taken_from_all_over_it():
    own, old = np.full(100, 1), np.arange(1000, 2000)
    mixed = with_old(own, old, 0.3, 10, end_id=7)
    assert mixed[:100].tolist() == [1] * 100
    assert mixed[100:111].tolist() == [7, *range(1000, 1010)]
    assert mixed[111:122].tolist() == [7, *range(1333, 1343)]
    assert mixed[122:].tolist() == [7, *range(1666, 1676)]
    little = with_old(own, old[:25], 0.3, 10, end_id=7)
    assert len(little) == 100 + 2 * 11, "no piece twice"


def test_the_small_model_that_is_shipped_begins_where_it_stands(here):
    """Its tokenizer and weights together: with others, the first loss would be above ln 4096."""
    config = configured(Path("models/stories"))  # from a folder that has none
    assert config["pretrain"]["init_from"] == config["tokenizer"]["path"] == str(STORIES)
    assert config["model"]["vocab_size"] == config["tokenizer"]["vocab_size"] == 4096
    assert config["pretrain"]["tokens"] <= 3.1 * len(PROSE)
    config["pretrain"] |= {"tokens": 512, "batch_tokens": 512}
    by_hand(config)
    lines = map(json.loads, Path("results/novel/pretrain/metrics.jsonl").read_text().splitlines())
    scores = [line["validation"]["novel"] for line in lines if "validation" in line]
    assert scores[0] < 3, "bits per byte of text that it has never seen"


def test_a_run_and_a_stage_stand_for_their_model(here):
    model_in(here / "results/before/pretrain/model", LLAMA)
    for given in ("results/before", "results/before/pretrain"):
        config = configured(Path(given))
        assert config["pretrain"]["init_from"] == "results/before/pretrain/model"


def test_rates_steps_and_readings(here):
    start = continued_run.read_start(STORIES, here / "results/novel")
    text = own_run.Text(400_000, 118_000, 4096, [])
    slow = continued_run.choose_tokens(text, start, 2, Speed(1e-3, 0.0))
    assert slow == 80_000, "as many as there is time for"
    tokens = continued_run.choose_tokens(text, start, 60, Speed(1e-3, 0.0))
    assert tokens == 3 * text.tokens
    config = continued_run.make_config("novel", ["novel.txt"], text, start, tokens)
    pretrain = config["pretrain"]
    assert pretrain["learning_rate"] == 3e-4
    assert (pretrain["keep"], pretrain["batch_tokens"]) == ("best", 2048)
    config = continued_run.make_config("novel", ["novel.txt"], text, start, 100 * tokens)
    assert config["pretrain"]["batch_tokens"] == 32_768, "a long run has larger steps"
    wide = ModelConfig.from_dict(LLAMA | {"dim": 768, "context": 512})
    wider = continued_run.Start(start.folder, wide, start.tokenizer, None)
    config = continued_run.make_config("novel", ["novel.txt"], text, wider, tokens)
    assert config["pretrain"]["learning_rate"] == 1e-4


def test_long_rows_are_cut_where_positions_are_rotary(here, caplog):
    long = model_in(here / "long", LLAMA | {"context": 4096})
    assert continued_run.read_start(long, here / "results").config.context == 1024
    assert "rows of 1,024 tokens in place of the model's 4,096" in caplog.text
    learned = model_in(here / "learned", GPT2 | {"context": 2048})
    assert continued_run.read_start(learned, here / "results").config.context == 2048


@pytest.mark.parametrize(
    ("start", "text", "message"),
    [
        ("nowhere", PROSE, "nowhere"),
        ("parent", PROSE[:4_000], "too little to learn from; give at least 5 kB, some 2 pages"),
        ("long", PROSE[:6_000], "are fewer than a row of the model, 4,096; give more text"),
        (
            "results/novel",
            PROSE,
            "--from results/novel: its model belongs to this run, which would replace it; give the "
            "new run another name with --name",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_is_written(
    here, capsys, start, text, message
):
    model_in(here / "parent", LLAMA)
    model_in(here / "long", GPT2 | {"context": 4096})
    shutil.copytree(here / "parent", here / "results/novel/pretrain/model")
    Path("results/novel/config.yaml").write_text("run: novel\ncorpus: {sources: [novel.txt]}\n")
    Path("novel.txt").write_text(text)
    before = sorted(here.rglob("*"))
    assert main(["train", "novel.txt", "--from", start]) == 1
    assert message in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


def test_too_little_text_says_what_it_can_teach_and_what_helps(here, capsys, monkeypatch):
    short = Path("short.txt")
    short.write_text(PROSE[:6_000])
    assert main(["train", "short.txt"]) == 1
    assert (
        "give at least 20 kB, some 10 pages; or go on from a model that can write: nanoeuler "
        in (capsys.readouterr().err)
    )
    short.write_text(3 * PROSE)
    choice = own_run.Choice(own_run.SIZES[0], 10_000, 1e3)
    monkeypatch.setattr(own_run, "choose_here", lambda text, minutes: (choice, "cpu"))
    file = Path("results/short/config.yaml")
    prepare(file, "short", ["short.txt"], 1, "nanoeuler train short.txt")
    little = "letters and short words: many words that the model writes will not exist"
    said = capsys.readouterr().err
    assert little in said
    assert "nanoeuler train TEXT --from models/stories" in said
    config = load(file)
    paths = Paths(config)
    own = ["--own", *own_text(paths), "--output", paths.corpus]
    assert main(["assemble", *own, "--config", json.dumps(config)]) == 0
    assert little in " ".join(next_steps(config).split())
    config["pretrain"]["init_from"] = str(STORIES)
    assert little not in " ".join(next_steps(config).split())
