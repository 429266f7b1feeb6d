"""Tokenizers and embeddings as other programs leave them: in use, with tokens and rows added."""

import json

import numpy as np
import pytest
import tokenizers
from checkouts import ROOT
from exported_shapes import GPT2, VOCABULARY
from grown import ROWS, USED, add_rows, add_tokens, edit
from safetensors.numpy import load_file

from nanoeuler.cli import main
from nanoeuler.config import load
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.interchange import accepting
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_config, load_model
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.tokenizer_json import ADDED_TOKEN
from nanoeuler.training.parents import check_tokenizer, read_parent

TEXT = "The harbour lies below [PAD] the hill.</s>"
KINDS = pytest.mark.parametrize("fields", [{}, {"tied": True}, GPT2], ids=["llama", "tied", "gpt2"])
SPARE = 20
"""Rows of an embedding that no token has."""


@pytest.fixture
def exported(make_model, tmp_path):
    """A function that exports a model of some shape, tuned on the template alpaca."""

    def make(fields):
        export(make_model(fields, "alpaca"), "hf", "f32", tmp_path / "hf")
        return tmp_path / "hf"

    return make


def rows_of(folder):
    tensors = load_file(folder / "model.safetensors")
    return {name: tensors[name] for name in tensors.keys() & set(ROWS)}


def test_how_a_tokenizer_was_used_is_no_part_of_it(exported, tokenizer_path, tmp_path):
    folder = exported({})
    edit(folder / "tokenizer.json", lambda content: content.update(USED))
    import_folder(folder, tmp_path / "back")
    ours, given = (
        Tokenizer.load(tmp_path / "back" / "tokenizer.json"),
        Tokenizer.load(tokenizer_path),
    )
    assert ours.fingerprint == given.fingerprint
    content = json.loads((tmp_path / "back" / "tokenizer.json").read_text())
    assert (content["truncation"], content["padding"]) == (None, None)


@KINDS
def test_added_special_tokens_are_special_ones(exported, tokenizer_path, tmp_path, fields):
    """[PAD] of the standard tutorial: never made of text, and never chosen."""
    folder = exported(fields)
    add_tokens(folder, "[PAD]", "<mask>", special=True)
    add_rows(folder, 2, scale=50.0)  # as likely as can be
    import_folder(folder, tmp_path / "back")
    model = api.load(tmp_path / "back", "cpu")
    given = Tokenizer.load(tokenizer_path)
    assert model.tokenizer.special_ids == given.special_ids | {"[PAD]": 300, "<mask>": 301}
    assert np.array_equal(model.tokenizer.encode(TEXT), given.encode(TEXT))
    written = []
    for seed in range(8):
        reply = model.stream("The harbour", raw=True, temperature=1.0, seed=seed, max_tokens=20)
        list(reply)
        written += reply.ids
    assert written
    assert max(written) < VOCABULARY
    export(tmp_path / "back", "hf", "f32", tmp_path / "out")
    assert all(
        np.array_equal(rows, rows_of(folder)[k]) for k, rows in rows_of(tmp_path / "out").items()
    )
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert theirs.encode("[PAD]", add_special_tokens=False).ids == [300]


def test_an_added_token_may_end_documents(exported, change_config, tokenizer_path, tmp_path):
    """As where a model was tuned on chats; what its file puts around a text is a matter of use."""
    folder = exported({})
    add_tokens(folder, "<|im_end|>", special=True)
    add_rows(folder, 1)
    change_config(folder, bos_token_id=None, eos_token_id=300)
    theirs = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}
    edit(folder / "tokenizer.json", lambda content: content.update(post_processor=theirs))
    import_folder(folder, tmp_path / "back")
    ours = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    assert (ours.end_id, ours.vocabulary.end_literal) == (300, "<|im_end|>")
    assert np.array_equal(ours.encode(TEXT), Tokenizer.load(tokenizer_path).encode(TEXT))
    export(tmp_path / "back", "hf", "f32", tmp_path / "out")
    import_folder(tmp_path / "out", tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again" / "tokenizer.json").end_id == 300
    ours.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").end_id == 300


def test_added_words_are_cut_as_the_library_cuts_them(exported, tmp_path):
    folder = exported({})
    add_tokens(folder, "<tool>", "harbour", special=False)
    add_tokens(folder, "[PAD]", special=True)
    add_rows(folder, 3)
    import_folder(folder, tmp_path / "back")
    ours = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True
    for text in (TEXT, "<tool>x</tool> harbours", "", "caf\u00e9 \u65e5\u672c"):
        ids = ours.encode(text).tolist()
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == text
    assert 301 in ours.encode(TEXT)
    assert 302 not in ours.encode(TEXT)
    export(tmp_path / "back", "hf", "f32", tmp_path / "out")
    import_folder(tmp_path / "out", tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again" / "tokenizer.json")
    assert again.fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": 305, "content": "[PAD]"}, "not 0, 1, 2, … without gaps"),
        ({"id": 4, "content": "[PAD]"}, "not 0, 1, 2, … without gaps"),
        ({"id": 301, "content": "</s>"}, "its added token '</s>' has the id 301"),
        ({"id": None, "content": "[PAD]"}, "its added token '[PAD]' has the id None"),
        ({"id": 300, "content": "\ud800"}, "has half a character"),
        ({"id": 300}, "its added tokens are not a list of tokens"),
        ({"id": 300, "content": "[PAD]", "special": None}, "'[PAD]' does not say whether special"),
        ({"id": 300, "content": "[PAD]", "lstrip": 1}, "'[PAD]' does not say whether lstrip"),
    ],
)
def test_a_damaged_addition_is_refused(exported, tmp_path, change, words):
    folder = exported({})
    add_rows(folder, 1)
    path = folder / "tokenizer.json"
    edit(path, lambda content: content["added_tokens"].append(ADDED_TOKEN | change))
    with pytest.raises(UserError) as caught:
        import_folder(folder, tmp_path / "back")
    assert words in str(caught.value)


HEADS = {"head_size": 32}  # which a GPU's kernels have


@pytest.fixture(
    params=[HEADS, HEADS | {"tied": True}, GPT2 | {"dim": 128}], ids=["llama", "tied", "gpt2"]
)
def padded(request, exported, tmp_path):
    """A folder whose embedding has rows that no token has, which are the likeliest by far, and the
    model folder that import makes of it."""
    folder = exported(request.param)
    add_rows(folder, SPARE, scale=50.0)
    import_folder(folder, tmp_path / "back")
    return folder, tmp_path / "back"


def test_rows_that_no_token_has_are_kept(padded, tokenizer_path, tmp_path):
    theirs, ours = padded
    assert load_config(ours).vocab_size == VOCABULARY + SPARE
    assert api.load(ours, "cpu").tokenizer.vocab_size == VOCABULARY
    export(ours, "hf", "f32", tmp_path / "out")
    before, after = rows_of(theirs), rows_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 320
    accepting.accept(ours)


@pytest.mark.parametrize(
    "device", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_never_chosen(padded, device, temperature):
    _, ours = padded
    model = api.load(ours, device)
    ids = [model.tokenizer.end_id, *model.tokenizer.encode("The harbour")]
    logits_TV = model.logits(ids)
    assert logits_TV.shape == (len(ids), VOCABULARY + SPARE)
    assert (logits_TV.argmax(axis=1) >= VOCABULARY).all(), "the test says nothing"
    written = []
    for speculation in (False, True):
        model = api.load(ours, device, speculation=speculation)
        for seed in range(4):
            reply = model.stream("The harbour", "", True, 40, temperature=temperature, seed=seed)
            list(reply)
            written.append(reply.ids)
    assert written[:4] == written[4:]
    assert any(written)
    assert max(map(max, filter(None, written))) < VOCABULARY


def test_other_programs_are_told_never_to_choose_them(padded, tmp_path):
    _, ours = padded
    export(ours, "hf", "f32", tmp_path / "out")
    for folder in (ours, tmp_path / "out"):
        never = json.loads((folder / "generation_config.json").read_text())["suppress_tokens"]
        assert set(range(VOCABULARY, VOCABULARY + SPARE)) <= set(never)


def test_the_probability_of_a_text_is_that_over_all_rows(padded):
    """As transformers has it: what the spare rows take is lost."""
    _, ours = padded
    model = api.load(ours, "cpu")
    saved = load_model(ours)
    assert saved.config.vocab_size == VOCABULARY + SPARE
    logits = model.logits([0, 280, 281])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    assert shares[:, :VOCABULARY].sum() < 0.01


def test_it_is_a_parent_with_its_own_tokenizer_only(padded, tokenizer_path, tmp_path):
    _, ours = padded
    config, path = load_config(ours), ours / "tokenizer.json"
    own = Tokenizer.load(path)
    assert read_parent(ours, config, own, path).weights.size
    check_tokenizer(own, path, config, started=True)
    with pytest.raises(UserError, match=r"model.vocab_size is 320 but .* has 300 entries"):
        check_tokenizer(own, path, config)


def test_a_configuration_may_name_more_rows_than_ids_where_it_starts_from_a_model(tmp_path):
    def sizes(rows, *more):
        keys = ["tokenizer.vocab_size=300", f"model.vocab_size={rows}", *more]
        config = load(ROOT / "config" / "small.yaml", keys)
        return config["model"]["vocab_size"], config["tokenizer"]["vocab_size"]

    started = f"sft.init_from={tmp_path}"
    assert sizes(320, started) == (320, 300)
    assert sizes(262_208, started) == (262_208, 300)  # as many as a Gemma 3 has
    assert sizes(300) == (300, 300)
    for rows, more in ((320, ()), (290, (started,))):
        with pytest.raises(UserError, match=r"leave out model.vocab_size"):
            sizes(rows, *more)


def test_fewer_rows_than_ids_are_refused(exported, tmp_path):
    folder = exported({})
    add_tokens(folder, "harbour", special=False)
    with pytest.raises(UserError, match="has 301 ids where the model's embedding has 300 rows"):
        import_folder(folder, tmp_path / "back")


def test_special_tokens_without_a_row_are_left_out_by_name(exported, tmp_path, capsys):
    """As a Gemma 3 for text has one, of images."""
    folder = exported({})
    import_folder(folder, tmp_path / "plain")
    add_tokens(folder, "<image>", "<audio>", special=True)
    main(["import", str(folder), "--output", str(tmp_path / "back")])
    assert "no row for them: '<image>', '<audio>'" in capsys.readouterr().err
    ours = [Tokenizer.load(tmp_path / name / "tokenizer.json") for name in ("plain", "back")]
    text = "The fox lives in the <image> mill."
    assert ours[0].encode(text).tolist() == ours[1].encode(text).tolist()
    assert ours[1].vocab_size == VOCABULARY
    assert api.load(tmp_path / "back", "cpu").generate("The", max_tokens=4, seed=1)
