"""Imported models whose tokenizer is SentencePiece's: ▁ for a space, ids of single bytes."""

import json

import numpy as np
import pytest
import tokenizers
from exported_shapes import VOCABULARY
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nanoeuler.errors import UserError
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.likelihood import added_spaces, token_byte_lengths
from nanoeuler.model.template import TEMPLATES
from nanoeuler.tokenizer import StreamDecoder, Tokenizer
from nanoeuler.training.records import encode_turns

SPECIALS = ["<unk>", "<s>", "</s>"]
TEXTS = [
    "The harbour lies below the hill.",
    "It's  12345\n\n\tthe </s> now <s> <0x41>",
    " the start",
    "café — 日本語 🎉\n",
    "",
    "end ",
]
FORMS = {
    "llama": (
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
    ),
    "metaspace": (None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)),
}


@pytest.fixture(params=FORMS)
def folder(request, make_model, change_config, tmp_path):
    """A folder of transformers with such a tokenizer, <s> in front of texts and </s> behind."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[*SPECIALS, *bytes_], show_progress=False
    )
    made.train_from_iterator(["the harbour lies below the hill. " * 9] * 9, trainer)
    content = json.loads(made.to_str())
    model = models.BPE(
        content["model"]["vocab"],
        [tuple(merge) for merge in content["model"]["merges"]],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(SPECIALS)
    made.normalizer, made.pre_tokenizer = FORMS[request.param]
    steps = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    folder = tmp_path / "theirs"
    export(make_model({"vocab_size": made.get_vocab_size()}), "hf", "f32", folder)
    made.save(str(folder / "tokenizer.json"))
    change_config(folder, bos_token_id=1, eos_token_id=2)
    return folder


@pytest.fixture
def tokenizer(folder, tmp_path):
    import_folder(folder, tmp_path / "ours")
    return Tokenizer.load(tmp_path / "ours" / "tokenizer.json")


def test_it_encodes_and_decodes_like_the_library(folder, tokenizer, tmp_path):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    framed = tokenizers.Tokenizer.from_file(str(tmp_path / "ours" / "tokenizer.json"))
    library.encode_special_tokens = framed.encode_special_tokens = True
    assert tokenizer.end_id == 2
    for text in TEXTS:
        ids = tokenizer.encode(text).tolist()
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert framed.encode(text).ids == [2, *ids]
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", [0, 1])
def test_the_token_in_front_is_not_taken_for_the_end(folder, tmp_path, kind):
    """`<s>` before each of a pair, whose second text has type 1 in Llama 2, and here maybe 0."""
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = (
        {"SpecialToken": {"id": "<s>", "type_id": kind}},
        {"Sequence": {"id": "B", "type_id": kind}},
    )
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    path.write_text(json.dumps(content))
    import_folder(folder, tmp_path / "ours")
    ours = Tokenizer.load(tmp_path / "ours" / "tokenizer.json")
    assert (ours.end_id, ours.vocabulary.end_literal) == (2, "</s>")


def test_what_continues_a_text_gets_no_space(tokenizer):
    for text in TEXTS:
        ids = tokenizer.encode(text, continues=True)
        decoder = StreamDecoder(tokenizer)
        assert "".join(map(decoder.push, ids.tolist())) + decoder.flush() == text
        assert tokenizer.decode(ids, continues=True) == text
    ids = tokenizer.encode("the harbour lies").tolist()
    decoder = StreamDecoder(tokenizer)
    parts = [decoder.push(id) for id in ids[1:]]
    assert tokenizer.decode(ids[:1]) + "".join(parts) == "the harbour lies"


def test_every_byte_comes_back(tokenizer):
    for content in (bytes(range(256)), b"caf\xc3", b"\xff\xfe ab \xed\xa0\x80"):
        assert tokenizer.decode_bytes(tokenizer.encode(content)) == content


def test_only_pieces_that_start_a_text_begin_with_a_space(tokenizer):
    borders = np.array([0, 3, 6])
    ids = tokenizer.encoder.encode(b"thehill", borders, frame=2, framed=1).tolist()
    continued = tokenizer.encode("the", continues=True).tolist()
    assert ids == [*continued, 2, *tokenizer.encode("hil").tolist()]


def test_a_record_has_the_words_of_prompt_and_reply(tokenizer):
    turn = {"instruction": "Where?", "output": "the hill"}
    record = encode_turns([turn], tokenizer, TEMPLATES["chat"])
    prompt = TEMPLATES["chat"]("Where?")
    assert tokenizer.decode(record.tokens[1:-1]) == prompt + "the hill"
    assert tokenizer.decode(record.tokens[record.learned][:-1], continues=True) == "the hill"


def test_the_bytes_of_a_text_are_counted_without_the_space_in_front(tokenizer):
    texts = ["the hill. café", "lies below"]
    ids = np.concatenate([np.r_[2, tokenizer.encode(text)] for text in texts] + [np.array([2])])
    inputs, targets = ids[None, :-1], ids[None, 1:]
    counted = int(token_byte_lengths(tokenizer)[targets].sum())
    assert counted - added_spaces(tokenizer, inputs, targets) == len("".join(texts).encode())


def test_the_token_in_front_is_read_as_theirs(folder, tokenizer, tmp_path):
    saved = load_model(tmp_path / "ours")
    embedding = FlatBuffer(saved.config, saved.parameters)["model.embed_tokens.weight"]
    assert np.array_equal(embedding[2], embedding[1])


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
class TestRefused:
    def test_only_the_model_of_sentencepiece(self, folder, tmp_path):
        (folder / "tokenizer.json").rename(folder / "tokenizer.model")
        with pytest.raises(UserError, match=r"a tokenizer.model only, of which transformers"):
            import_folder(folder, tmp_path / "ours")
        assert not (tmp_path / "ours").exists()

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"bos_token_id": 10**9}, "which is no special token"),
            ({"bos_token_id": [1]}, "which is no special token"),
            ({"eos_token_id": 7}, "eos_token_id is 7, but documents end with"),
        ],
    )
    def test_other_tokens_in_front_and_behind(self, folder, change_config, tmp_path, keys, words):
        change_config(folder, **keys)
        with pytest.raises(UserError, match=words):
            import_folder(folder, tmp_path / "ours")

    def test_a_byte_that_is_missing(self, folder, tmp_path):
        path = folder / "tokenizer.json"
        path.write_text(path.read_text().replace("<0x41>", "<0xXX>"))
        with pytest.raises(UserError, match=r"lacks 1 of the 256 bytes, such as '<0x41>'"):
            import_folder(folder, tmp_path / "ours")
