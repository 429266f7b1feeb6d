"""Imported models whose tokenizer cuts words in another way than GPT-2's does."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from exported_shapes import VOCABULARY
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nanoeuler.errors import UserError
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_model
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.huggingface_encoder import HuggingFaceEncoder
from nanoeuler.tokenizer.tokenizer_json import ADDED_TOKEN

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|end|>"
TEXTS = ["It's 12345 o'clock.\n\n  HE'LL go <|end|> now", "", " café — 日本語 \n", "<tool>x</tool>"]


@pytest.fixture
def foreign(make_model, tmp_path):
    """A folder of transformers with a tokenizer that cuts numbers into three digits."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2, initial_alphabet=sorted(alphabet), show_progress=False
    )
    made.train_from_iterator(TEXTS * 9 + ["The harbour lies below the hill. 1234567"] * 9, trainer)
    made.add_special_tokens([END])
    made.add_tokens(["<tool>"])
    assert made.get_vocab_size() == VOCABULARY
    folder = tmp_path / "foreign"
    export(make_model({}), "hf", "f32", folder)
    made.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"bos_token_id": None, "eos_token_id": made.token_to_id(END)})
    )
    return folder, made


def test_it_encodes_like_the_library_and_knows_its_end(foreign, tmp_path):
    folder, library = foreign
    import_folder(folder, tmp_path / "back")
    tokenizer = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    assert tokenizer.end_id == library.token_to_id(END)
    assert tokenizer.special_ids == {END: tokenizer.end_id}
    library.encode_special_tokens = True
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert ids.tolist() == library.encode(text).ids
        assert tokenizer.end_id not in ids
        assert tokenizer.decode(ids) == text
    assert library.token_to_id("<tool>") in tokenizer.encode("<tool>x")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").end_id == tokenizer.end_id
    first, second = (tokenizer.encode(part).tolist() for part in ("123", "456"))
    assert tokenizer.encode("123456").tolist() == first + second


def test_every_byte_comes_back(foreign, tmp_path):
    folder, _ = foreign
    import_folder(folder, tmp_path / "back")
    tokenizer = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    for content in (bytes(range(256)), b"caf\xc3", b"\xff\xfe ab \xed\xa0\x80"):
        assert tokenizer.decode_bytes(tokenizer.encode(content)) == content


def test_pieces_are_framed_as_by_our_encoder(foreign, tmp_path):
    folder, _ = foreign
    import_folder(folder, tmp_path / "back")
    tokenizer = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    assert isinstance(tokenizer.encoder, HuggingFaceEncoder)
    borders = np.array([0, 3, 3, 8])
    ids = tokenizer.encoder.encode(b"one two.", borders, frame=7, framed=1).tolist()
    one, two = (tokenizer.encode(text).tolist() for text in ("one", " two."))
    assert ids == [*one, 7, 7, *two]


def test_it_is_a_parent_and_goes_out_again(foreign, tmp_path):
    folder, _ = foreign
    import_folder(folder, tmp_path / "back")
    export(tmp_path / "back", "hf", "f32", tmp_path / "out")
    import_folder(tmp_path / "out", tmp_path / "again")
    first, second = (load_model(tmp_path / name) for name in ("back", "again"))
    assert np.array_equal(first.parameters, second.parameters)
    paths = [tmp_path / name / "tokenizer.json" for name in ("back", "again")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    ours = Tokenizer.load(paths[0])
    assert theirs.encode("It's").ids == [ours.end_id, *ours.encode("It's").tolist()]


def test_gguf_is_refused(foreign, tmp_path):
    pytest.importorskip("gguf")
    folder, _ = foreign
    import_folder(folder, tmp_path / "back")
    with pytest.raises(UserError, match="the words of this imported tokenizer are not GPT-2's"):
        export(tmp_path / "back", "gguf", "f32", tmp_path / "out")


def test_without_the_library_it_says_what_to_install(foreign, tmp_path):
    folder, _ = foreign
    import_folder(folder, tmp_path / "back")
    program = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "from nanoeuler.tokenizer import Tokenizer\n"
        f"Tokenizer.load({str(tmp_path / 'back' / 'tokenizer.json')!r}).encode('x')"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "install it with pip install 'nanoeuler[tokenizers]'" in found.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["model"]["vocab"].update({"AB": c["model"]["vocab"].pop("!")}), "256 bytes"),
        (
            lambda c: c["added_tokens"].append(ADDED_TOKEN | {"content": "x y", "id": 900}),
            "without gaps",
        ),
        (lambda c: c["added_tokens"].append(3), "its added tokens are not a list"),
        (lambda c: c.update(decoder=None), "import reads byte-level BPE, and"),
        (lambda c: c.update(normalizer={"type": "Ours"}), "library does not read this tokenizer"),
        (lambda c: c["model"]["merges"].append(["?", "??"]), "library does not read this"),
        (
            lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(
                pattern={"Regex": "(?:a|aa)+z|."}
            ),
            "library does not read a text of 3,000 bytes",
        ),
        (
            lambda c: c.update(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
            "Cannot parse precompiled_charsmap",
        ),
        (lambda c: c["added_tokens"][0].update(special=False), "no special token that is known"),
    ],
)
def test_damage_is_one_sentence(foreign, tmp_path, change, words):
    folder, _ = foreign
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        import_folder(folder, tmp_path / "back")
    assert words in str(caught.value)
