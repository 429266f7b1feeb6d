"""The calculator is exact, and says in a word what it cannot compute."""

import re
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler.model.calculator import (
    MOST_CHARACTERS,
    MOST_DIGITS,
    TOO_LARGE,
    UNDEFINED,
    UNREADABLE,
    calculate,
)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("48/2", "24"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("10-4-3", "3"),
        ("64/4/2", "8"),
        (" 1 +\t2", UNREADABLE),
        (" 1 + 2 ", "3"),
        ("2 × 3 − 12 ÷ 4", "3"),
        ("0.2 x 50", "10"),
        (".5*3", "1.5"),
        ("0.1+0.2", "0.3"),
        ("1,250*2", "2500"),
        ("1,000,000.5-.5", "1000000"),
        ("-3*-(2+1)", "9"),
        ("2--3", "5"),
        ("--2", "2"),
        ("+10", "10"),
        ("3-+2", "1"),
        ("3*+6", "18"),
        ("++1", "1"),
        ("-+-+(2+1)", "3"),
        ("+12.5+25+16.5", "54"),
        ("-0.0", "0"),
        ("007", "7"),
        ("((((1))))", "1"),
        ("1/3", "0.333333"),
        ("-2/3", "-0.666667"),
        ("1/7000", "0.000142857"),
        ("20000000/3", "6666667"),
        ("1/8", "0.125"),
        ("1/1048576", "0.00000095367431640625"),
        ("1/2097152", "0.000000476837"),
        ("999999.5/1", "999999.5"),
        (f"9{'9' * (MOST_DIGITS - 1)}+0", "9" * MOST_DIGITS),
    ],
)
def test_an_expression_has_one_result(expression, result):
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        *("", " ", "()", "(", ")", "1+", "*2", "1 2", "2(3)", "(1)(2)", "1..2", "5.", "."),
        *("+", "-", "1-+", "(+)", "+*2"),
        *("1,00", "1,0000", "10000,000", "1,000,00", "1,,000", "2**3", "2^3", "1e3", "two", "2a"),
        *("1)", "((1)", ")1(", "1/", "1//2", "1/0/", "٣+1", "²", "1_000", "1=1", "$5", "5%", "a\0"),
    ],
)
def test_what_is_no_expression_is_a_word(expression):
    assert calculate(expression) == UNREADABLE


def test_a_division_by_zero_is_a_word():
    assert {calculate(text) for text in ("1/0", "0/0", "1/(2-2)", "5/-0.0")} == {UNDEFINED}


def test_what_is_beyond_the_bounds_is_a_word():
    assert calculate("1" + "0" * MOST_DIGITS) == TOO_LARGE
    assert calculate("9" * (MOST_CHARACTERS + 1)) == TOO_LARGE
    assert calculate("(" * 10_000_000) == TOO_LARGE
    assert calculate("1" + "+1" * (MOST_CHARACTERS // 2 - 1)) == str(MOST_CHARACTERS // 2)


@pytest.mark.parametrize("piece", ["(", "-", "+", "1/3+", "9*", "(1+", "1/(1+", "-(", "1.7/"])
def test_the_longest_expressions_take_no_time(piece):
    began = process_time()
    for _ in range(20):
        calculate((piece * MOST_CHARACTERS)[: MOST_CHARACTERS - 1] + "1")
    assert process_time() - began < 1.0  # some 20 ms


numbers = st.one_of(
    st.integers(0, 10**9).map(str),
    st.decimals(0, 10**6, places=3, allow_nan=False).map(lambda number: f"{number:f}"),
    st.integers(10**3, 10**7).map("{:,}".format),
    st.integers(1, 999).map(".{}".format),
)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("+{}".format),
    ),
    max_leaves=12,
)


def by_python(expression: str) -> Fraction:
    """Python's own grammar, with every number a fraction."""
    text = re.sub(r"[\d.,]+", lambda found: f"F('{found[0].replace(',', '')}')", expression)
    return eval(text, {"F": Fraction})  # the test made the text


@settings(max_examples=1000, deadline=None)
@given(expressions)
def test_results_are_those_of_python_s_grammar_and_fractions(expression):
    found = calculate(expression)
    if len(expression) > MOST_CHARACTERS:
        assert found == TOO_LARGE
        return
    try:
        value = by_python(expression)
    except ZeroDivisionError:
        assert found == UNDEFINED
        return
    if abs(value) >= 10**MOST_DIGITS:
        assert found == TOO_LARGE
        return
    if (value * 10**MOST_DIGITS).denominator == 1:
        assert Fraction(found) == value
    else:
        quotient = Context(prec=300).divide(value.numerator, Decimal(value.denominator))
        places = max(0, 5 - quotient.adjusted())
        unit = Decimal(1).scaleb(-min(places, MOST_DIGITS))
        rounded = quotient.quantize(unit, ROUND_HALF_UP, Context(prec=300))
        assert Decimal(found) == rounded
    assert found == f"{Decimal(found):f}"  # nothing but digits: no exponent
    assert "." not in found or not found.endswith(("0", "."))


@settings(max_examples=500, deadline=None)
@given(st.text("0123456789+-*/().,x ×÷−%$a\n", max_size=30))
def test_any_text_has_a_result_of_bounded_length(text):
    found = calculate(text)
    assert found in (UNREADABLE, UNDEFINED, TOO_LARGE) or len(found) <= 2 * MOST_DIGITS + 2
