"""Calls of the calculator in texts: which are kept, how they are encoded, and how they are read."""

import numpy as np
import pytest

from nanoeuler.model.calls import Calculator, Calls, encode_reply, split_calls, without_calls
from nanoeuler.tokenizer import StreamDecoder, Tokenizer
from nanoeuler.tokenizer.vocabulary import CALL, CALL_END, GPT2_END, Vocabulary, build

TOKENIZER = Tokenizer(build([(16 + 17, 16 + 19)]))  # "24" has two tokens, "35" has one


def read(text):
    """The parts of a text, and what was dropped."""
    return split_calls(text).parts, split_calls(text).dropped


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("48/2 = <<48/2=24>>24 clips", ["48/2 = ", "48/2", "24", " clips"]),
        ("<<1+1=2>>2<<2+2=4>>4.", ["", "1+1", "2", "", "2+2", "4", "."]),
        ("$<<12/60=.2>>0.2", ["$", "12/60", "0.2", ""]),
        ("<<4500*5=22500>>22,500 or", ["", "4500*5", "22500", " or"]),
        ("<<1/2=0.5>>.50!", ["", "1/2", "0.5", "!"]),
        ("<<5-8=-3>>-3", ["", "5-8", "-3", ""]),
        ("<<1/0=undefined>>undefined", ["", "1/0", "undefined", ""]),
    ],
)
def test_a_call_that_says_what_the_calculator_does_is_kept(text, parts):
    assert read(text) == (parts, 0)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<<48/2=25>>25", "25"),
        ("<<48/2=24>>25", "25"),
        ("<<48/2=24>>240", "240"),
        ("<<48/2=24>>24.5", "24.5"),
        ("<<48/2=24>> clips", " clips"),
        ("<<100/3=33.33>>33.33", "33.33"),
        ("<<10//2=5>>5", "5"),
        ("<<1+=1>>1", "1"),
        ("<<1/0=0>>0", "0"),
        ("<<2=>>2", "2"),
        (f"<<{'1+' * 200}1=201>>201", "201"),
        (f"<<1={'1' * 5000}>>1", "1"),
    ],
)
def test_a_call_that_says_something_else_is_dropped_and_its_text_stays(text, left):
    assert read(f"a {text}") == ([f"a {left}"], 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cout << a << b;",
        "<<a=b>>",
        "x <<= 3",
        "<<x+1=2>>2"[:5],
        "<< >>",
        "<<1+1>>",
        "<<<<",
        "\n",
    ],
)
def test_other_text_is_no_call(text):
    assert read(text) == ([text], 0)


def test_each_part_is_encoded_by_itself_and_results_are_not_learned():
    reply = encode_reply("48/2 = <<48/2=24>>24 clips", TOKENIZER)
    call, end = (TOKENIZER.special_ids[literal] for literal in (CALL, CALL_END))
    parts = [TOKENIZER.encode(part).tolist() for part in ("48/2 = ", "48/2", "24", " clips")]
    text, expression, result, rest = parts
    assert reply.ids.tolist() == [*text, call, *expression, end, *result, *rest]
    assert reply.learned.tolist() == [
        *(len(text) + 1 + len(expression) + 1) * [True],
        *len(result) * [False],
        *len(rest) * [True],
    ]
    assert (reply.calls, reply.dropped) == (1, 0)
    assert reply.ids.dtype == np.int32


def test_a_reply_without_calls_has_the_tokens_of_its_text():
    for text in ("", "no call", "cout << 2;"):
        assert encode_reply(text, TOKENIZER).ids.tolist() == TOKENIZER.encode(text).tolist()
        assert encode_reply(text, TOKENIZER).learned.all()


def test_a_tokenizer_without_the_tokens_of_calls_learns_the_text_alone():
    ours = build([])
    other = Tokenizer(
        Vocabulary([*ours.tokens[16:], GPT2_END.encode()], {GPT2_END: 256}, [], GPT2_END)
    )
    assert other.call_ids is None
    reply = encode_reply("48/2 = <<48/2=24>>24, <<1=2>>2", other)
    assert other.decode(reply.ids) == "48/2 = 24, 2"
    assert reply.learned.all()
    assert (reply.calls, reply.dropped) == (0, 2)


def test_readers_see_no_calls():
    text = "48/2 = <<48/2=24>>24 clips, <<1+1=3>>3"
    assert without_calls(text) == "48/2 = 24 clips, 3"
    assert TOKENIZER.decode_reply(encode_reply(text, TOKENIZER).ids.tolist()) == without_calls(text)


def test_a_stream_shows_no_call_wherever_its_tokens_are_divided():
    ids = encode_reply("é <<3+5=8>>8 é<<1/4=0.25>>0.25.", TOKENIZER).ids.tolist()
    for border in range(len(ids) + 1):
        decoder = StreamDecoder(TOKENIZER, stops=("0.25.",))
        pieces = [decoder.push(*ids[:border]), decoder.push(*ids[border:]), decoder.flush()]
        assert "".join(pieces) == "é 8 é"
        assert decoder.stopped


def ids_of(*parts):
    """Tokens of texts, of `call` and of `end`."""
    named = {"call": TOKENIZER.call_ids[0], "end": TOKENIZER.call_ids[1], "</s>": 0}
    return [
        id
        for part in parts
        for id in ([named[part]] if part in named else TOKENIZER.encode(part).tolist())
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["1+1", "end"], ""),
        (["call", "1+1", "end"], "2"),
        (["call", "1+1", "call", "2*3", "end"], "6"),
        (["call", "1+1", "</s>", "2*3", "end"], ""),
        (["call", "1+1", "end", "end"], ""),
        (["call", "end"], "error"),
        (["call", "\u00e9", "end"], "error"),
        (["call", "9/0", "end"], "undefined"),
        (["call", "1+" * 100 + "1", "end"], "overflow"),
        (["call", "10*10", "end", "1"], "00"),
        (["call", "10*10", "end", "100"], ""),
        (["call", "10*10", "end", "7"], ""),
        (["call", "10*10", "end", "call"], ""),
        (["call", "1*1", "end", "1", "call", "2*2", "end"], "4"),
    ],
)
def test_what_is_given_behind_a_prompt(parts, expected):
    calls = Calls(Calculator(TOKENIZER), ids_of("call", "8*8", "end", "64", *parts))
    assert TOKENIZER.decode(calls.given) == expected


def test_an_expression_with_an_id_that_no_token_has_is_none():
    calls = Calls(Calculator(TOKENIZER), [*ids_of("call", "1+1"), 5000, *ids_of("end")])
    assert TOKENIZER.decode(calls.given) == "error"


def test_tokens_stand_up_to_the_end_of_a_call_and_given_ones_take_their_places():
    calls = Calls(Calculator(TOKENIZER), ())
    sampled = ids_of("a", "call", "60+7", "end", "x", "y")
    calls.correct(sampled)
    assert calls.follow(sampled) == len(sampled) - 2
    sampled = ids_of("x", "y", "z", "end")
    calls.correct(sampled)
    assert sampled == ids_of("67", "z", "end")
    assert calls.follow(sampled) == 4


def test_the_results_of_a_reply_are_known_from_its_tokens():
    reply = encode_reply("a <<3+5=8>>8 b <<5*25=125>>125 c", TOKENIZER)
    given = Calculator(TOKENIZER).results(reply.ids.tolist())
    assert given == (~reply.learned).tolist()
    assert sum(given) == 4
    assert Calculator(TOKENIZER).results(ids_of("call", "9*9", "end", "8")) == [*5 * [False], True]
