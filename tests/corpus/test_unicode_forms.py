"""Equal text in another Unicode form is found; listings that differ in operators are kept."""

import itertools
import random
import unicodedata

import numpy as np
import pytest
from corpus_samples import manifest_of, read, run, write_book, write_pages

from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.characters import comparable
from nanoeuler.corpus.near_duplicates import needed_agreement
from nanoeuler.corpus.signatures import sign_documents
from nanoeuler.corpus.split import choose_stretches
from nanoeuler.corpus.word_hashes import hash_words

SYLLABLES = [
    *("người", "việt", "đã", "được", "những", "trường", "học", "tiếng", "ở"),
    *("một", "khoảng", "giữa", "thế", "kỷ", "mười", "ký", "ức", "đường"),
]


def vietnamese(number: int, words: int = 120) -> str:
    dice = random.Random(number)
    return unicodedata.normalize("NFC", " ".join(dice.choices(SYLLABLES, k=words)) + f" {number}.")


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(
    "settings",
    [
        {"deduplicate": {"web": "near"}},
        {"deduplicate": {"web": "none"}, "decontaminate": True},
    ],
)
def test_held_out_pages_are_not_trained_on_in_another_form(tmp_path, settings):
    pages = [vietnamese(number) for number in range(400)]
    shards = [
        write_pages(tmp_path / "nfc.txt", pages),
        write_pages(tmp_path / "nfd.txt", [decomposed(page) for page in pages]),
    ]
    assert run(tmp_path, "--fineweb", *shards, **settings) == 0
    train, validation = (
        [comparable(text.encode()) for text in read(tmp_path / "corpus", split, "fineweb")]
        for split in ("train", "validation")
    )
    assert len(validation) > 30
    assert not set(train) & set(validation)
    dropped = manifest_of(tmp_path)["sources"]["fineweb"]["dropped"]
    if "decontaminate" not in settings:
        assert dropped["near duplicates"]["documents"] == 400
        # what is trained on stays as it is
        kept = read(tmp_path / "corpus", "train", "fineweb")
        assert set(kept) < {*pages, *map(decomposed, pages)}


def test_own_notes_in_two_forms_are_on_one_side_and_are_exact_copies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for number in range(60):
        for form in ("NFC", "NFD"):
            text = unicodedata.normalize(form, vietnamese(number))
            (tmp_path / f"notes/{number}-{form}.txt").write_text(text)
    assert run(tmp_path, sources=["notes"]) == 0
    train, validation = (
        {comparable(text.encode()) for text in read(tmp_path / "corpus", split, "notes")}
        for split in ("train", "validation")
    )
    assert len(train) + len(validation) == 60
    settings = {"deduplicate": {"own_text": "exact"}}
    assert run(tmp_path, sources=["notes"], output="exact", **settings) == 0
    dropped = manifest_of(tmp_path, "exact")["sources"]["notes"]["dropped"]
    assert dropped["exact duplicates"]["documents"] == 60


def test_a_novel_in_another_form_holds_out_the_same_paragraphs(tmp_path):
    novel = "\n\n".join(vietnamese(number, 40) for number in range(400))
    of_forms = [
        {
            comparable(paragraph)
            for start, stop in choose_stretches(raw, 0.05)
            for paragraph in raw[start:stop].split(b"\n\n")
        }
        for raw in (novel.encode(), decomposed(novel).encode())
    ]
    assert len(of_forms[0] & of_forms[1]) > 0.5 * len(of_forms[0])  # 0.05 if drawn anew


def test_a_book_in_another_form_is_an_exact_copy(tmp_path):
    texts = [vietnamese(number, 400) for number in range(12)]
    texts.append(decomposed(texts[5]))
    books = [write_book(tmp_path / "clean", n, f"Book {n}", text) for n, text in enumerate(texts)]
    assert run(tmp_path, "--books", *books, deduplicate={"books": "exact"}) == 0
    dropped = manifest_of(tmp_path)["sources"]["gutenberg"]["dropped"]
    assert dropped["exact duplicates"]["documents"] == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("é", "e\u0301"),
        ("ﬁn\u00ad", "fin"),
        ("ｶﾞ １", "ガ 1"),
        ("\u200fא\u200e", "א"),
        ("e\u200d\u0301", "é"),
        ("x\ufe0f", "x"),
    ],
)
def test_texts_are_compared_without_regard_to_their_form(one, other):
    assert comparable(one.encode()) == comparable(other.encode())
    assert comparable(b"as it is") == b"as it is"


def listing(operators: list[str]) -> str:
    lines = [
        f"    {one} = {two} {operator} {three}"
        for operator, (one, two, three) in zip(
            operators, itertools.permutations("abcdefgh", 3), strict=False
        )
    ]
    return "def run(a, b, c, d, e, f, g, h):\n" + "\n".join(lines) + "\n    return a\n"


KINDS = {
    "arithmetic": ["+", "-", "*", "/", "%", "**"],
    "comparison": ["==", "!=", "<", ">", "<=", ">="],
    "bits": ["&", "|", "^", "<<", ">>"],
    "mathematics": ["≤", "≥", "≠", "×", "÷", "∧", "∨", "∈"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_listings_that_differ_in_operators_alone_are_no_near_copies(tmp_path, kind):
    dice = random.Random(1)
    listings = [listing(dice.choices(KINDS[kind], k=40)) for _ in range(600)]
    shard = write_pages(tmp_path / "web.txt", listings)
    assert run(tmp_path, "--fineweb", shard, deduplicate={"web": "near"}) == 0
    dropped = manifest_of(tmp_path)["sources"]["fineweb"]["dropped"]
    assert dropped["near duplicates"]["documents"] == 0


def test_prefix_operators_count_too():
    listings = [
        "\n".join(f"({operator} ({other} a b) c{n})" for n in range(30))
        for operator, other in itertools.permutations("-/+*", 2)
    ]
    assert similar(listings) == [(n, n) for n in range(len(listings))]


def test_a_copy_of_a_listing_with_a_changed_line_and_other_spaces_is_a_near_copy():
    dice = random.Random(2)
    one = listing(dice.choices(KINDS["arithmetic"], k=60))
    other = one.replace("    ", "\t").replace(" = ", "=").replace("return a", "return a + 1")
    assert similar([one, other]) == [(0, 0), (0, 1), (1, 1)]


def test_prose_with_other_dashes_and_quotation_marks_is_a_near_copy():
    one = "\n".join(f"“Yes”—he said it {n} times – or {n + 1}." for n in range(60))
    other = one.replace("“", '"').replace("”", '"').replace("—", "--").replace("–", "-")
    assert similar([one, other]) == [(0, 0), (0, 1), (1, 1)]


def similar(texts: list[str]) -> list[tuple[int, int]]:
    batch = Batch.of([text.encode() for text in texts])
    signed = sign_documents(batch, *hash_words(batch))
    return [
        (one, other)
        for one, other in itertools.combinations_with_replacement(range(len(texts)), 2)
        if np.sum(signed[one] == signed[other]) >= needed_agreement(0.8)
    ]


THAI = "กขคงจชซญดตถทนบปผพฟมยรลวสหอ"


def thai(number: int, letters: int = 900) -> str:
    dice = random.Random(number)
    return "".join(
        letter + dice.choice(["", "ี", "่", "ู"]) for letter in dice.choices(THAI, k=letters)
    )


def test_pages_of_thai_are_compared_though_they_have_no_spaces(tmp_path):
    pages = [thai(number) for number in range(40)]
    changed = pages[5][:300] + "ใหม่" + pages[5][310:]
    quoting = [thai(100 + number, 400) + pages[number][200:420] + thai(200) for number in range(40)]
    shards = [
        write_pages(tmp_path / "one.txt", [*pages, changed]),
        write_pages(tmp_path / "two.txt", quoting),
    ]
    settings = {"deduplicate": {"web": "near"}, "decontaminate": True}
    assert run(tmp_path, "--fineweb", *shards, **settings) == 0
    entry = manifest_of(tmp_path)["sources"]["fineweb"]
    assert entry["dropped"]["near duplicates"]["documents"] == 1
    held_out = [
        pages.index(page)
        for page in read(tmp_path / "corpus", "validation", "fineweb")
        if page in pages
    ]
    train = read(tmp_path / "corpus", "train", "fineweb")
    assert held_out
    assert not any(quoting[number] in train for number in held_out)
    assert entry["dropped"]["contaminated"]["held-out text"]["documents"] < 20
