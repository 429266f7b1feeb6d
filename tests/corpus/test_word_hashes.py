"""The hashed words of a text, by which near-duplicates and quotations are found."""

import itertools
import random
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoeuler.corpus import word_hashes
from nanoeuler.corpus.batches import Batch
from nanoeuler.corpus.word_hashes import hash_words


def words(*texts: str) -> list[list[int]]:
    batch = Batch.of([text.encode() for text in texts])
    hashes, borders = hash_words(batch)
    return [hashes[start:stop].tolist() for start, stop in itertools.pairwise(borders)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Don't stop!", "don’t   STOP"),
        ("a\r\nb\tc", "A b C."),
        ("w" * 7 + " 42", "WWWWWWW-42"),
        ("ÉCOLE Ελλάς ЖУК", "école ελλάς жук"),
        ("中文字", "中 文 字"),
        ("ひらカナ", "ひ、ら。カ ナ"),
        ("中文ab中", "中 文 ab 中"),
        ("\U00020000\U0003134a", "\U00020000 \U0003134a"),
        ("end 🙂 of", "end of"),
        ("ﬁnd the ﬂag", "find the flag"),
        ("ＦＵＬＬ ｗｉｄｔｈ ４２", "full width 42"),
        ("ｶﾞｷﾞ", "ガ ギ"),
        ("co\u00adoper\u200bate", "cooperate"),
        ("\ufeffStraße", "STRASSE"),
        ("o\u0302\u0323", "ộ"),
        ("한국어", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165"),
        ("x² ½", "x2 1/2"),
        ("\U0002f80b", "像"),
    ],
)
def test_case_and_what_stands_between_words_do_not_matter(one, other):
    assert words(one) == words(other)
    assert words(one) != [[]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ab c", "a bc"),
        ("ab", "ba"),
        ("caf\u00e9", "cafe"),
        ("1 0", "10"),
        ("हिन्दी", "हिन्दि"),
        ("한국어", "한국"),
        ("ガ", "カ"),
        ("e\u0301\u0323", "e\u0301"),
        ("ệ", "ê"),
    ],
)
def test_different_words_differ(one, other):
    assert words(one) != words(other)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "…!?—“”", "\0\x01", "🙂🙂", "。、", "٪"])
def test_text_without_words_has_none(text):
    assert words(text) == [[]]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("one", 1),
        ("two words", 2),
        ("中文字", 3),
        ("हिन्दी भाषा", 2),
        ("e\u0301te\u0301", 1),
        ("ガギグ", 3),
        ("ㄅㄆ", 1),
        ("a1 b2", 2),
    ],
)
def test_words_are_counted(text, count):
    assert len(words(text)[0]) == count


def test_documents_are_kept_apart():
    assert words("one two", "", "three", "one") == [
        *words("one two"),
        [],
        *words("three"),
        *words("one"),
    ]
    assert words() == []


@given(
    st.lists(
        st.text(st.characters(max_codepoint=0x24F, exclude_categories=["Cs"]), max_size=30),
        max_size=5,
    )
)
def test_latin_words_are_those_of_a_regular_expression(texts):
    def count(text):
        table = {
            code: "" for code in range(0x250) if unicodedata.ucd_3_2_0.category(chr(code)) == "Cn"
        }
        text = unicodedata.normalize("NFKC", text.translate(table)).replace("\xad", "")
        return len(re.findall(r"[^\W_]+", text))

    texts = [
        text
        for text in texts
        if not any(unicodedata.ucd_3_2_0.category(letter) == "Cn" for letter in text)
    ]
    assert [len(found) for found in words(*texts)] == [count(text) for text in texts]


@given(st.text(st.sampled_from("abcXYZ019 .-\n’é中\0"), max_size=80))
def test_a_word_has_one_hash_whatever_stands_around_it(text):
    spoken = re.findall(r"中|[^\W_中]+", text)
    assert words(text)[0] == [found for word in spoken for found in words(word)[0]]
    assert words(text, text) == words(text) * 2


@pytest.mark.parametrize("size", [*range(1, 26), 63, 64, 65])
def test_words_of_every_length(size):
    word = ("abcdefghijklmnopqrstuvwxyz0123456789" * 2)[:size]
    assert (
        words(word) == words(f"“{word.upper()}”") == words(f"... {word}\n") == words(f"\0{word}\0")
    )
    assert words(f"{word} {word}") == [words(word)[0] * 2]
    assert words(word, word) == words(word) * 2
    assert (
        len(
            {
                words(word)[0][0],
                words(word + "a")[0][0],
                words(word + "é")[0][0],
                words("é" + word)[0][0],
            }
        )
        == 4
    )


def test_the_kelvin_sign_is_a_k():
    assert words("300\u212a") == words("300K")


@given(st.binary(max_size=60))
def test_bytes_that_are_not_utf_8_do_no_harm(raw):
    hashes, borders = hash_words(Batch.of([raw]))
    assert borders.tolist() == [0, len(hashes)]
    assert len(hashes) <= 2 * len(raw) + 1


def test_one_document_of_fifty_megabytes_without_a_space_is_one_word():
    hashes, _ = hash_words(Batch.of([b"x" * 50_000_000]))
    assert len(hashes) == 1


FORMS = ("NFC", "NFD", "NFKC", "NFKD")
CHARACTERS = [chr(code) for code in range(sys.maxunicode) if not 0xD800 <= code < 0xE000]


@pytest.mark.parametrize("form", FORMS)
def test_every_character_has_the_words_of_its_other_forms(form):
    texts, others = [], []
    for character in CHARACTERS:
        text = f"ab{character}cd {character} x{character}{character}"
        other = unicodedata.normalize(form, text)
        if other != text:
            texts.append(text)
            others.append(other)
    found = zip(texts, words(*texts), words(*others), strict=True)
    assert [text for text, one, other in found if one != other] == []
    assert len(texts) > 1000


@given(
    st.text(
        st.one_of(
            st.sampled_from("abc 12"),
            st.sampled_from(
                [
                    character
                    for character in CHARACTERS
                    if unicodedata.combining(character)
                    or unicodedata.decomposition(character)
                    or unicodedata.category(character) == "Cf"
                ]
            ),
        ),
        max_size=40,
    ),
    st.sampled_from(FORMS),
)
def test_a_text_has_the_words_of_its_other_forms(text, form):
    without = "".join(letter for letter in text if unicodedata.category(letter) != "Cf")
    assert words(text) == words(unicodedata.normalize(form, text)) == words(without)


def test_no_character_has_more_words_than_there_is_room_for():
    found = words(*CHARACTERS)
    assert all(
        len(one) <= word_hashes.WORDS_A_BYTE * len(character.encode())
        for one, character in zip(found, CHARACTERS, strict=True)
    )


@pytest.mark.parametrize("script", ["Thai", "Lao", "Khmer", "Burmese"])
def test_text_without_spaces_has_words_of_a_few_letters_wherever_it_stands(script):
    first = {"Thai": 0x0E01, "Lao": 0x0E94, "Khmer": 0x1780, "Burmese": 0x1000}[script]
    dice = random.Random(1)
    letters = [chr(first + number) for number in range(12)]
    passage = "".join(dice.choices(letters, k=400))
    (found,) = words(passage)
    assert 60 < len(found) < 160
    (quoting,) = words("".join(dice.choices(letters, k=77)) + passage + "".join(letters[:5]))
    inside = ",".join(map(str, found[1:-1]))
    assert inside in ",".join(map(str, quoting))
