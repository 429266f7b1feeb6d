"""`nanoeuler bpe` and `nanoeuler tokenize`: same results for any threads, errors for bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizer_samples import PROSE, prose_documents, write_corpus

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.corpus_text import Corpus, chunks
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.tokenizer.stages import encode_chunk, tokenize_corpus

CONFIG = json.dumps({"tokenizer": {"vocab_size": 400, "sample_bytes": 1_000_000}})
LONG = (PROSE * 3_000).encode()  # spans several chunks
SOURCES = {
    "gutenberg": {
        "train": [LONG, b"</s> is text", b"\xff\xfe not UTF-8 \xc3"],
        "validation": [b"one held-out book"],
    },
    "fineweb": {"train": prose_documents(3_000), "validation": prose_documents(40, seed=1)},
    "my-novel": {"train": [b"x"], "validation": []},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("stages") / "corpus", SOURCES)


@pytest.fixture(scope="module")
def learned(corpus: Path) -> Path:
    path = corpus.parent / "tokenizer-400" / "tokenizer.json"
    assert bpe(corpus, path, "--log", corpus.parent / "bpe.log") == 0
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(stage: str, config: str, corpus: Path, output: Path, *more: str | Path) -> int:
    words = stage, "--config", config, "--corpus", corpus, "--output", output, *more
    return main([str(word) for word in words])


def bpe(corpus: Path, output: Path, *more: str | Path, config: str = CONFIG) -> int:
    return run("bpe", config, corpus, output, *more)


def tokenize(corpus: Path, tokenizer: Path, output: Path, *more: str, config: str = CONFIG) -> int:
    return run("tokenize", config, corpus, output, "--tokenizer", tokenizer, *more)


def test_bpe_writes_a_tokenizer_of_the_size_asked_for(corpus: Path, learned: Path):
    assert Tokenizer.load(learned).vocab_size == 400
    assert "bpe vocab_size=400" in (corpus.parent / "bpe.log").read_text()


def test_bpe_gives_the_same_file_again(corpus: Path, learned: Path, tmp_path: Path):
    assert bpe(corpus, tmp_path / "again.json") == 0
    assert (tmp_path / "again.json").read_bytes() == learned.read_bytes()


@pytest.fixture(scope="module")
def tokens(corpus: Path, learned: Path) -> Path:
    folder = corpus.parent / "tokens-400"
    assert tokenize(corpus, learned, folder) == 0
    return folder


def test_every_document_is_framed_and_encoded(learned: Path, tokens: Path, corpus: Path):
    tokenizer, store = Tokenizer.load(learned), TokenStore.open(tokens / "manifest.json")
    for source, splits in SOURCES.items():
        for split, documents in splits.items():
            wanted = [
                index
                for document in documents
                for index in (tokenizer.end_id, *tokenizer.encode(document).tolist())
            ]
            assert store.tokens(split, source)[:].tolist() == wanted, (split, source)
            assert store.bytes(split, source) == sum(map(len, documents))
            assert store.manifest["splits"][split][source]["documents"] == len(documents)
    assert store.manifest["corpus"] == json.loads(corpus.read_text())["fingerprint"]
    assert store.manifest["dtype"] == "uint16"
    assert store.tokenizer_fingerprint == tokenizer.fingerprint
    ends = np.flatnonzero(store.tokens("train")[:] == tokenizer.end_id)
    assert len(ends) == 3 + 3_000 + 1


def test_several_threads_write_the_same_files(
    corpus: Path, learned: Path, tokens: Path, tmp_path: Path
):
    assert tokenize(corpus, learned, tmp_path / "tokens", "--threads", "3") == 0
    assert files_of(tmp_path / "tokens") == files_of(tokens)


def test_small_shards_hold_the_same_tokens(
    corpus: Path, learned: Path, tokens: Path, tmp_path: Path
):
    store = tokenize_corpus(
        corpus, learned, tmp_path / "tokens", vocab_size=400, shard_tokens=10_000
    )
    assert len(list((tmp_path / "tokens").glob("train-gutenberg-*.bin"))) > 10
    assert np.array_equal(
        store.tokens("train")[:], TokenStore.open(tokens / "manifest.json").tokens("train")[:]
    )


@pytest.mark.parametrize("size", [1, 50, 1_000, 10**9])
def test_chunks_of_any_size_have_the_same_ids(learned: Path, tmp_path: Path, size: int):
    corpus = Corpus(
        write_corpus(
            tmp_path / "corpus",
            {
                "web": {
                    "train": [PROSE.encode(), *prose_documents(50), b"end"],
                    "validation": [b"a b"],
                }
            },
        )
    )
    tokenizer = Tokenizer.load(learned)

    def ids_in(size: int) -> list[int]:
        found = (encode_chunk(corpus, tokenizer, chunk)[2] for chunk in chunks(corpus, size))
        return np.concatenate([*found]).tolist()

    ids = ids_in(size)
    assert ids == ids_in(100)
    assert ids.count(0) == 53


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what is read")
def test_a_text_is_read_once(learned: Path, corpus: Path, tmp_path: Path):
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])  # rchar

    texts = sum(path.stat().st_size for path in corpus.parent.glob("*/*.txt"))
    before = bytes_read()
    tokenize_corpus(corpus, learned, tmp_path / "tokens", vocab_size=400)
    assert texts <= bytes_read() - before < 1.5 * texts


def test_a_text_that_has_changed_leaves_no_tokens(learned: Path, tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus", SOURCES)
    text = corpus.parent / "train/gutenberg.txt"
    text.write_bytes(text.read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match=r"gutenberg\.txt: its bytes are not those that"):
        tokenize_corpus(corpus, learned, tmp_path / "tokens", vocab_size=400, threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def sentence(capsys: pytest.CaptureFixture) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            '{"tokenizer": {"vocab_size": 271, "sample_bytes": 1000}}',
            "tokenizer.vocab_size is 271: it must be at least 272",
        ),
        (
            '{"tokenizer": {"vocab_size": "512", "sample_bytes": 1000}}',
            "'tokenizer.vocab_size' cannot be '512'; correct it",
        ),
        (
            '{"tokenizer": {"vocab_size": 512, "sample_bytes": 0}}',
            "tokenizer.sample_bytes is 0: it must be at least 1",
        ),
        ('{"tokenizer": {"vocab_size": 512}}', "tokenizer.sample_bytes is None"),
        ("{}", "the config has no section `tokenizer`"),
    ],
)
def test_a_wrong_config_gets_one_sentence(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture, config: str, said: str
):
    assert bpe(corpus, tmp_path / "tokenizer.json", config=config) == 1
    assert said in sentence(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", ["folder", "file"])
def test_a_given_tokenizer_is_taken_as_it_is(corpus: Path, learned: Path, tmp_path: Path, given):
    path = learned.parent if given == "folder" else learned
    config = json.dumps({"tokenizer": {"vocab_size": 400, "path": str(path)}})
    output = tmp_path / "tokenizer.json"
    little = write_corpus(tmp_path / "little", {"web": {"train": [b"text"], "validation": []}})
    assert bpe(little, output, config=config) == 0
    assert output.read_bytes() == learned.read_bytes()
    assert Tokenizer.load(output).fingerprint == Tokenizer.load(learned).fingerprint


@pytest.mark.parametrize(
    ("path", "vocab_size", "said"),
    [
        ("", 512, "has 400 ids where tokenizer.vocab_size is 512; set it to 400"),
        ("nowhere", 400, "nowhere"),
    ],
)
def test_a_given_tokenizer_that_does_not_fit_is_refused(
    corpus: Path, learned: Path, tmp_path: Path, capsys, path, vocab_size, said
):
    given = {"vocab_size": vocab_size, "path": str(learned.parent / path)}
    output = tmp_path / "tokenizer.json"
    config = json.dumps({"tokenizer": given})
    assert bpe(corpus, output, config=config) == 1
    assert said in sentence(capsys)
    assert not output.exists()


def test_too_little_text_says_how_many_ids_it_yields(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    little = write_corpus(
        tmp_path / "little", {"web": {"train": [b"so so little text"], "validation": []}}
    )
    config = '{"tokenizer": {"vocab_size": 512, "sample_bytes": 1000000}}'
    assert bpe(little, tmp_path / "tokenizer.json", config=config) == 1
    assert (
        "17 bytes of text yield 273 ids where tokenizer.vocab_size asks for 512; "
        "set it to 273 or less, or add text to the corpus" in sentence(capsys)
    )
    config = '{"tokenizer": {"vocab_size": 60000, "sample_bytes": 5000}}'
    assert bpe(corpus, tmp_path / "tokenizer.json", config=config) == 1
    assert "or raise tokenizer.sample_bytes" in sentence(capsys)
    assert not (tmp_path / "tokenizer.json").exists()


def test_no_text_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture):
    empty = write_corpus(tmp_path / "empty", {"web": {"train": [], "validation": []}})
    assert bpe(empty, tmp_path / "tokenizer.json") == 1
    assert "0 bytes of text yield 272 ids" in sentence(capsys)


def test_a_tokenizer_of_another_size_is_refused(
    corpus: Path, learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    config = '{"tokenizer": {"vocab_size": 512}}'
    assert tokenize(corpus, learned, tmp_path / "tokens", config=config) == 1
    assert "it has 400 ids where tokenizer.vocab_size is 512" in sentence(capsys)
    assert not list(tmp_path.iterdir())


def test_any_number_of_threads_learns_the_same_file(corpus: Path, learned: Path, tmp_path: Path):
    assert bpe(corpus, tmp_path / "again.json", "--threads", "3") == 0
    assert (tmp_path / "again.json").read_bytes() == learned.read_bytes()


def test_no_threads_get_one_sentence(
    corpus: Path, learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert tokenize(corpus, learned, tmp_path / "tokens", "--threads", "0") == 1
    assert "--threads is 0" in sentence(capsys)
