"""tokenizer.json: `tokenizers` reads it, and a damaged or unsupported file gets one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from nanoeuler.errors import UserError
from nanoeuler.tokenizer import Tokenizer


@pytest.fixture
def path(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    tokenizer.save(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def test_what_is_saved_is_loaded(tokenizer: Tokenizer, path: Path):
    loaded = Tokenizer.load(path)
    assert loaded.vocabulary == tokenizer.vocabulary
    assert loaded.fingerprint == tokenizer.fingerprint


def test_fingerprint_is_of_the_content_not_of_the_layout(tokenizer: Tokenizer, path: Path):
    content = json.loads(path.read_text())
    content["model"]["merges"] = [merge.split(" ") for merge in content["model"]["merges"]]
    path.write_text(json.dumps(dict(reversed(content.items()))))
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    content["model"]["merges"].reverse()
    path.write_text(json.dumps(content))
    assert Tokenizer.load(path).fingerprint != tokenizer.fingerprint


def test_a_file_that_tokenizers_wrote_is_the_same_tokenizer(tokenizer: Tokenizer, path: Path):
    tokenizers.Tokenizer.from_file(str(path)).save(str(path))
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint


def test_tokenizers_knows_the_special_tokens(tokenizer: Tokenizer, path: Path):
    peer = tokenizers.Tokenizer.from_file(str(path))
    assert {
        token.content: index for index, token in peer.get_added_tokens_decoder().items()
    } == tokenizer.special_ids
    # it leaves special tokens out by default
    assert peer.decode([0, *tokenizer.encode("Hi"), 3]) == "Hi"
    assert peer.get_vocab_size() == tokenizer.vocab_size


def test_tokenizers_takes_literal_specials_for_text_only_when_told(
    tokenizer: Tokenizer, path: Path
):
    peer = tokenizers.Tokenizer.from_file(str(path))
    text = "x</s>y <|user|>"
    assert 0 in peer.encode(text).ids
    peer.encode_special_tokens = True
    assert peer.encode(text).ids == tokenizer.encode(text).tolist()


def model(key: str, value: Any) -> Callable[[dict], None]:
    return lambda content: content["model"].update({key: value})


def top(key: str, value: Any) -> Callable[[dict], None]:
    return lambda content: content.update({key: value})


def rename(old: str, new: str) -> Callable[[dict], None]:
    def change(content: dict) -> None:
        content["model"]["vocab"][new] = content["model"]["vocab"].pop(old)

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda content: content.pop("model"), "not a tokenizer.json"),
        (model("type", "WordPiece"), "its model is 'WordPiece'"),
        (model("byte_fallback", True), "sets byte_fallback to True"),
        (model("dropout", 0.1), "sets dropout to 0.1"),
        (model("vocab", [1, 2]), "its vocab is not a map"),
        (model("vocab", {}), "damaged"),
        (lambda content: content["model"]["vocab"].pop("A"), "without gaps"),
        (rename("A", "東"), "the token '東' holds '東', which stands for no byte"),
        (rename("A", "AZAZAZ"), "lacks 1 of the 256 bytes, such as 'A'"),
        (model("merges", None), "its merges are not a list"),
        (model("merges", ["a b c"]), "merge 0 is 'a b c' and not a pair"),
        (model("merges", [["a", 3]]), r"merge 0 is \['a', 3\] and not a pair"),
        (model("merges", ["q zzz"]), r"merge 0 is q \+ zzz, but 'zzz' is not in its vocab"),
        (model("merges", ["Q Q"]), "but 'QQ' is not in its vocab"),
        (
            lambda content: content["model"]["merges"].append(content["model"]["merges"][0]),
            "lists a merge twice",
        ),
        (
            top("pre_tokenizer", {"type": "Whitespace"}),
            "its pre_tokenizer Whitespace is not known here, only ByteLevel .the scanner 'gpt2'. "
            "is",
        ),
        (top("pre_tokenizer", None), "its pre_tokenizer none is not known"),
        (top("pre_tokenizer", "ByteLevel"), "its pre_tokenizer ByteLevel is not known"),
        (
            lambda content: (
                content["model"].update(byte_fallback=True),
                content.update(
                    decoder={
                        "type": "Sequence",
                        "decoders": [{"type": "ByteFallback"}, {"type": ["Fuse"]}],
                    }
                ),
            ),
            "its model sets byte_fallback to True",
        ),
        (
            top("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True}),
            "sets add_prefix_space to True",
        ),
        (
            top(
                "pre_tokenizer",
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ),
            "sets use_regex to False",
        ),
        (top("normalizer", {"type": "NFC"}), "sets a normalizer .NFC."),
        (top("decoder", {"type": "WordPiece"}), "its decoder is WordPiece"),
        (
            top("post_processor", {"type": "TemplateProcessing"}),
            "sets a post_processor .TemplateProcessing.",
        ),
        (top("added_tokens", []), "no special token '</s>'"),
        (
            lambda content: content["added_tokens"][0].update(id=7),
            "its added token '</s>' has the id 7",
        ),
        (
            lambda content: content["added_tokens"][0].update(special=False),
            "no special token that is known",
        ),
    ],
)
def test_damaged_and_foreign_files_get_one_sentence(
    path: Path, damage: Callable[[dict], None], sentence: str
):
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence) as caught:
        Tokenizer.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"</s>"'])
def test_files_that_are_no_tokenizer_get_one_sentence(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(UserError, match="not"):
        Tokenizer.load(path)


def test_a_cut_off_file_gets_one_sentence(path: Path):
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError):
            Tokenizer.load(path)


def test_a_missing_file_gets_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        Tokenizer.load(tmp_path / "tokenizer.json")
