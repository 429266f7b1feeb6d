"""Read and write `tokenizer.json`, a file that the `tokenizers` library reads, too.

A file of another model whose words are not GPT-2's is kept as it is, and that library encodes by
it. Other settings under which it would encode differently from this project are refused: each is
either the one that we write, or an error names it. Truncation and padding belong to the use of a
tokenizer, and are ignored. Special tokens are listed as such, so that other tools know them.
`tokenizers` takes a literal `</s>` in a text for the token unless its `encode_special_tokens` is
set, whereas our `encode` never emits a special id from text.
"""

from pathlib import Path
from typing import Any, NoReturn

from nanoeuler.errors import UserError, brief
from nanoeuler.storage.files import read_json, write_json
from nanoeuler.storage.integrity import Origin, check_note, note_path
from nanoeuler.storage.shape import is_text
from nanoeuler.tokenizer import sentencepiece
from nanoeuler.tokenizer.vocabulary import (
    BYTE_OF_CHARACTER,
    CHARACTER_OF_BYTE,
    END,
    GPT2_END,
    Vocabulary,
)

SCANNED = "ByteLevel"
SCANNER = "gpt2"  # our name of the words that PRETOKENIZER cuts
PRETOKENIZER = {
    "type": SCANNED,
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
MODEL_SETTINGS = {
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
ADDED_TOKEN = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


def to_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of the file, which depends on the vocabulary alone and can be hashed."""
    if vocabulary.foreign is not None:
        return vocabulary.foreign
    names = [token_name(token) for token in vocabulary.tokens]
    for literal, index in vocabulary.specials.items():
        names[index] = literal
    specials = sorted(vocabulary.specials.items(), key=lambda item: item[1])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": literal, **ADDED_TOKEN} for literal, index in specials
        ],
        "normalizer": None,
        "pre_tokenizer": PRETOKENIZER,
        "post_processor": None,
        "decoder": DECODER,
        "model": {
            "type": "BPE",
            **MODEL_SETTINGS,
            "vocab": {name: index for index, name in enumerate(names)},
            "merges": [f"{names[left]} {names[right]}" for left, right, _ in vocabulary.merges],
        },
    }


def begin_with_end(vocabulary: Vocabulary) -> dict[str, Any]:
    """The post-processor of a model folder's file: other tools begin every text with the end token.

    So does every document in training. Our `encode` leaves that to its callers.
    """
    return frame_with(vocabulary.end_literal, vocabulary.end_id)


def frame_with(literal: str, index: int) -> dict[str, Any]:
    first = {"SpecialToken": {"id": literal, "type_id": 0}}
    texts = [{"Sequence": {"id": id, "type_id": 0}} for id in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0]],
        "pair": [first, texts[0], first, texts[1]],
        "special_tokens": {literal: {"id": literal, "ids": [index], "tokens": [literal]}},
    }


def write(path: str | Path, vocabulary: Vocabulary) -> None:
    """Write a `tokenizer.json`; the note of the file that was there before goes."""
    path = Path(path)
    note_path(path).unlink(missing_ok=True)
    if vocabulary.end is None:
        write_json(path, to_json(vocabulary))
    else:
        write_framed(path, vocabulary)  # says which token ends documents


def write_framed(path: Path, vocabulary: Vocabulary) -> None:
    """Write a `tokenizer.json` for a model folder."""
    write_json(path, to_json(vocabulary) | {"post_processor": begin_with_end(vocabulary)})


def read(path: str | Path) -> Vocabulary:
    """Read a `tokenizer.json`. Raises `UserError` when it is damaged or unsupported."""
    path = Path(path)
    remedy = (
        f"delete it and run that again, or, if you changed it yourself: nanoeuler accept {path}"
    )
    check_note(path, Origin("`nanoeuler bpe`", remedy))
    return read_unchecked(path)


def read_unchecked(path: Path) -> Vocabulary:
    """`read` without a check of the hash."""
    return Reader(path).vocabulary(read_json(path))


class Reader:
    """Checks the content of one file and converts it to a vocabulary; its errors name the file."""

    def __init__(
        self,
        path: Path,
        remedy: str = "run `nanoeuler bpe` to learn a tokenizer again, or give another file",
        end_id: int | None = None,
    ):
        """`end_id`: that of the token between documents, where the file does not tell."""
        self.path, self.remedy, self.end_id = path, remedy, end_id

    def refuse(self, problem: str) -> NoReturn:
        raise UserError(f"{self.path}: {problem}; {self.remedy}")

    def vocabulary(self, content: Any) -> Vocabulary:
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            self.refuse("not a tokenizer.json (it has no 'model' section)")
        added = self.added(content)
        foreign = self.is_foreign(content, added)
        if not foreign:
            self.check_settings(content)
        ids = self.ids(content, added)
        literals = {entry["content"] for entry in added}
        characters = sentencepiece.is_like(content)
        token = self.characters if characters else self.token
        tokens = [b""] * len(ids)
        for name, index in ids.items():
            tokens[index] = name.encode() if name in literals else token(name)
        every_byte = sentencepiece.byte_names() if characters else {*CHARACTER_OF_BYTE.values()}
        if missing := every_byte - (set(ids) - literals):
            self.refuse(
                f"damaged: its vocabulary lacks {len(missing)} of the 256 bytes, "
                f"such as {min(missing)!r}"
            )
        special = {entry["content"]: ids[entry["content"]] for entry in added if entry["special"]}
        specials = dict(sorted(special.items(), key=lambda item: item[1]))
        end = self.end_of(content, specials)
        if foreign:
            kept = content | dict.fromkeys(("truncation", "padding", "post_processor"))
            vocabulary = Vocabulary(tokens, specials, [], end, kept)
        else:
            merges = self.merges(content["model"].get("merges"), ids, specials)
            vocabulary = Vocabulary(tokens, specials, merges, end)
        if vocabulary.end_literal not in specials:
            known = "that is known to frame documents"
            ours = f"{END!r} or {GPT2_END!r}, which frame documents"
            self.refuse(f"it has no special token {known if foreign else ours}")
        if not foreign and self.end_id is None:
            self.check_post_processor(content.get("post_processor"), vocabulary)
        return vocabulary

    def is_foreign(self, content: dict[str, Any], added: list[dict[str, Any]]) -> bool:
        """Is it BPE over bytes that cuts or normalizes texts in another way than we do, or over
        characters?"""
        if sentencepiece.is_like(content):
            return True
        words = content.get("pre_tokenizer")
        if describe(words) == SCANNED and not all(entry["special"] for entry in added):
            self.check_settings(content)
            return True  # texts are cut at the words that were added, too
        parts = words.get("pretokenizers") if isinstance(words, dict) else None
        by_bytes = isinstance(parts, list) and describe(parts[-1] if parts else None) == "ByteLevel"
        byte_level = content["model"].get("type", "BPE") == "BPE" and not content["model"].get(
            "byte_fallback"
        )
        return by_bytes and byte_level and describe(content.get("decoder")) == "ByteLevel"

    def end_of(self, content: dict[str, Any], specials: dict[str, int]) -> str | None:
        """The special token between documents: that of `end_id`, else see `begin_with_end`.

        In front of a text there may be another one than behind it, as in Llama 2.
        """
        found = content.get("post_processor")
        of_id = [literal for literal, index in specials.items() if index == self.end_id]
        frames = [each for each in specials.items() if found == frame_with(*each)]
        ends = of_id or [literal for literal, _ in frames]
        usual = END if END in specials else GPT2_END
        return ends[0] if ends and ends[0] != usual else None

    def check_settings(self, content: dict[str, Any]) -> None:
        model = content["model"]
        if model.get("type", "BPE") != "BPE":
            self.refuse(f"its model is {brief(model['type'])} where this project reads 'BPE'")
        for key, ours in MODEL_SETTINGS.items():
            if model.get(key) not in (ours, None, ""):
                self.refuse(
                    f"its model sets {key} to {brief(model[key])}, which this project does not do"
                )
        if content.get("normalizer") is not None:
            self.refuse(
                f"it sets a normalizer ({describe(content['normalizer'])}), "
                "which this project does not do"
            )
        self.check_pretokenizer(content.get("pre_tokenizer"))
        if describe(content.get("decoder")) != "ByteLevel":
            self.refuse(
                f"its decoder is {describe(content.get('decoder'))} where this project reads "
                "ByteLevel"
            )

    def check_post_processor(self, found: Any, vocabulary: Vocabulary) -> None:
        """Refuse one that adds more than `begin_with_end` does."""
        single = begin_with_end(vocabulary)["single"]
        adds = found.get("single") if isinstance(found, dict) else None
        if describe(found) not in ("none", "ByteLevel") and adds != single:
            self.refuse(
                f"it sets a post_processor ({describe(found)}), which this project does not do"
            )

    def check_pretokenizer(self, found: Any) -> None:
        if not isinstance(found, dict) or describe(found) != SCANNED:
            self.refuse(
                f"its pre_tokenizer {describe(found)} is not known here, "
                f"only {PRETOKENIZER['type']} (the scanner {SCANNER!r}) is"
            )
        for key, default in (("add_prefix_space", True), ("use_regex", True)):
            if found.get(key, default) != PRETOKENIZER[key]:
                self.refuse(
                    f"its pre_tokenizer sets {key} to {brief(found.get(key, default))}, "
                    f"where the scanner {SCANNER!r} is {PRETOKENIZER[key]!r}"
                )

    def added(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """The tokens that were added to the model's, each with its `content`."""
        added = content.get("added_tokens") or []
        if not isinstance(added, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in added
        ):
            self.refuse("damaged: its added tokens are not a list of tokens")
        for entry in added:
            if wrong := [flag for flag in ADDED_TOKEN if type(entry.get(flag)) is not bool]:
                token = brief(entry["content"])
                self.refuse(f"damaged: its added token {token} does not say whether {wrong[0]}")
        for entry in added:
            if not is_text(entry["content"]):
                self.refuse(f"damaged: its added token {brief(entry)} has half a character")
        return added

    def ids(self, content: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, int]:
        """The ids of the model's tokens and of added ones, which must be 0, 1, 2, …"""
        vocab = content["model"].get("vocab")
        if not isinstance(vocab, dict) or not all(type(index) is int for index in vocab.values()):
            self.refuse("damaged: its vocab is not a map from tokens to ids")
        ids = dict(vocab)
        for entry in added:
            literal, index = entry["content"], entry.get("id")
            if type(index) is not int or ids.setdefault(literal, index) != index:
                self.refuse(f"damaged: its added token {brief(literal)} has the id {brief(index)}")
        if sorted(ids.values()) != list(range(len(ids))):
            self.refuse("damaged: the ids of its vocab are not 0, 1, 2, … without gaps")
        return ids

    def characters(self, name: str) -> bytes:
        """The bytes of a token of SentencePiece's."""
        try:
            return sentencepiece.token(name)
        except UnicodeEncodeError:
            self.refuse(f"damaged: the token {brief(name)} has half a character")

    def token(self, name: str) -> bytes:
        try:
            return bytes(BYTE_OF_CHARACTER[character] for character in name)
        except KeyError as error:
            self.refuse(
                f"damaged: the token {brief(name)} holds {error.args[0]!r}, "
                "which stands for no byte"
            )

    def merges(
        self, found: Any, ids: dict[str, int], specials: dict[str, int]
    ) -> list[tuple[int, int, int]]:
        """Read merges, which are written as "left right" or ["left", "right"]."""
        if not isinstance(found, list):
            self.refuse("damaged: its merges are not a list")
        merges = []
        for index, merge in enumerate(found):
            names = merge.split(" ") if isinstance(merge, str) else merge
            if (
                not isinstance(names, list)
                or len(names) != 2
                or not all(isinstance(name, str) for name in names)
            ):
                self.refuse(f"damaged: merge {index} is {brief(merge)} and not a pair of tokens")
            for name in (*names, "".join(names)):
                if name not in ids or name in specials:
                    self.refuse(
                        f"damaged: merge {index} is {' + '.join(names)[:60]}, "
                        f"but {brief(name)} is not in its vocab"
                    )
            merges.append((ids[names[0]], ids[names[1]], ids["".join(names)]))
        if len({merge[:2] for merge in merges}) < len(merges):
            self.refuse("damaged: it lists a merge twice")
        return merges


def token_name(token: bytes) -> str:
    """Spell a token as in the file, with one printing character for each byte."""
    return "".join(map(CHARACTER_OF_BYTE.__getitem__, token))


def describe(section: Any) -> str:
    """Return the name of a section's type."""
    if section is None:
        return "none"
    found = section.get("type") if isinstance(section, dict) else section
    return found if isinstance(found, str) and len(found) < 60 else brief(found)
