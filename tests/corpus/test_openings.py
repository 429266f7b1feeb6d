"""Prompts of one's own text are the first words of sentences of prose."""

import time

import pytest

from nanoeuler.corpus.openings import openings_of

PROSE = {
    "english": "It was a dark and stormy night, and the rain\nfell in torrents upon the quay.",
    "quoted": "“There is no use in trying,” said the ferryman. “One can't believe it.”",
    "german": "Über den Dächern lag der Nebel, und niemand ging mehr zum Hafen hinaus.",
    "spanish": "¿Quién ha visto al barquero, preguntó la niña, que no había dormido nada?",
    "russian": "Всё смешалось в доме у реки, и никто не знал, когда придёт паром.",
    "greek": "Ένα πρωί του χειμώνα ο βαρκάρης δεν ήρθε στην αποβάθρα του χωριού.",
    "chinese": "　　那年冬天,渡船没有来到码头,人们都在岸上等着。",
    "japanese": "「船はまだ来ない」と、彼女は窓の外を見ながら言った。",
    "korean": "그해 겨울에는 나룻배가 부두에 오지 않아서 사람들이 모두 기다렸다.",
    "arabic": "في ذلك الشتاء لم تأت العبارة إلى الرصيف، وانتظر الناس طويلا على الضفة؟",
    "hindi": "उस सर्दी में नाव घाट पर नहीं आई और लोग किनारे पर इंतज़ार करते रहे।",
    "thai": "ในฤดูหนาวปีนั้นเรือข้ามฟากไม่ได้มาที่ท่าเรือและผู้คนก็รออยู่ริมฝั่งแม่น้ำ",
    "abbreviation": "Mr. Tiller, who had the inn behind the mill, never spoke of that winter.",
}
NO_PROSE = {
    "contents": "CHAPTER XII. The Composition of the Ferry and of its Several Quays",
    "more contents": "I. The Quay. II. The Mill. III. The Inn. IV. The End. V. The Ferry.",
    "leaders": "The quay and the mill . . . . . . 12\nThe inn and the harbour . . . . . 31",
    "pages": "The quay and the mill            12\nThe inn and the harbour         31\nThe end  40",
    "capitals": "THE FERRY CAME TO THE QUAY ON DAY ONE OF THE LONG WINTER. IT WAS COLD.",
    "heading": "The Ferry of the Long Winter and Other Tales from the Quay",
    "markdown heading": "# The ferry came to the quay on day one of the long winter.",
    "list": "- The ferry came to the quay on day one of the long winter.",
    "numbered": "12. The ferry came to the quay on day one of the long winter.",
    "table": "| The ferry | came to the quay | on day one |\n| of the | long winter. | It |",
    "continued": "and so the ferry came to the quay on day one of the long winter.",
    "code": "Ferry.arrive(quay=1, day={'winter': 1}); return self.quays[0].day.__dict__.get(x).",
    "log": "2026-11-27 12:00:00 INFO the ferry came to the quay on day one of winter.",
    "chinese contents": "第一回 渡船来到码头\n第二回 人们都在岸上等着\n第三回 冬天",
}


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_a_sentence_of_prose_gives_its_first_words(text):
    (first,), others = openings_of(f"The Heading\n\n{text}\n\n* * *\n")
    assert others == []
    most = 20 if text in (PROSE["chinese"], PROSE["japanese"], PROSE["korean"]) else 60
    assert first == " ".join(text.split()[:5])[:most].strip()


@pytest.mark.parametrize("text", NO_PROSE.values(), ids=NO_PROSE)
def test_what_is_no_prose_gives_none(text):
    assert openings_of(f"{text}\n")[0] == []


def test_lines_that_are_paragraphs_begin_one_each():
    lines = [PROSE["chinese"], PROSE["japanese"], "第二回", PROSE["chinese"]]
    assert len(openings_of("\n".join(lines))[0]) == 3


def test_long_text_without_any_prose_has_other_beginnings():
    assert openings_of("字" * 5000) == ([], ["字" * 20])
    assert openings_of("acgt" * 5000) == ([], ["acgt" * 15])
    assert openings_of("\n \n") == ([], [])


@pytest.mark.parametrize(
    "unit",
    [
        "\n",
        "\n \n",
        " ",
        "\t",
        "\r",
        "a",
        ".",
        '."',
        "A. ",
        ". .",
        "\n\nA",
        "—",
        "字",
        "。」",
        "*** ",
    ],
)
def test_the_time_is_proportional_to_the_length(unit):
    """White space, marks and repetitions; 2,000 line feeds took 19 s once."""
    text = "It was a dark and stormy night, and the rain fell. " + unit * (2_000_000 // len(unit))
    started = time.monotonic()
    openings_of(text)
    openings_of(unit * (2_000_000 // len(unit)))
    assert time.monotonic() - started < 20
