"""Exact arithmetic on text: `calculate("48/2")` is "24".

An expression has whole numbers and decimals (`12`, `0.5`, `.5`, `1,000`), + − × ÷ or their ASCII
forms + - * / (x is × too), signs in front of values, and brackets. It is computed in fractions,
in a time that grows with its length, which is bounded. There is no power, so results cannot be much
longer than what they are made of.
"""

import re
from collections.abc import Callable
from fractions import Fraction

MOST_CHARACTERS = 200
"""Longest expression."""
MOST_DIGITS = 20
"""Most digits of a result before its point, and behind it."""
SIGNIFICANT = 6
"""Significant digits of a quotient without end, where it has no more of them before its point."""

UNDEFINED, UNREADABLE, TOO_LARGE = "undefined", "error", "overflow"
"""The results of a division by zero, of what is no expression, and beyond the bounds."""

NUMBER = r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
TOKEN = re.compile(rf" *(?:({NUMBER})|([-+*/()]))", re.ASCII)
IN_ASCII = str.maketrans("−×x÷", "-**/")

NEGATIVE = "negative"
RANK = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, NEGATIVE: 3}
OPERATION: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": Fraction.__add__,
    "-": Fraction.__sub__,
    "*": Fraction.__mul__,
    "/": Fraction.__truediv__,
}


def calculate(expression: str) -> str:
    """The result of an expression, or a word.

    A result with at most MOST_DIGITS decimals is exact. Any other is rounded, half away from zero,
    to SIGNIFICANT digits, but not to fewer than those before its point.
    """
    if len(expression) > MOST_CHARACTERS:
        return TOO_LARGE
    try:
        return written(evaluate(expression))
    except ZeroDivisionError:
        return UNDEFINED
    except ValueError:
        return UNREADABLE
    except OverflowError:
        return TOO_LARGE


def evaluate(expression: str) -> Fraction:
    """The value of an expression, by Dijkstra's two stacks (1961).

    Raises ValueError for what is none, and ZeroDivisionError.
    """
    text = expression.translate(IN_ASCII).rstrip(" ")
    values: list[Fraction] = []
    operators: list[str] = []
    divides_by_zero = False

    def apply_down_to(rank: int) -> None:
        """Apply the operators on top of the stack whose rank is at least this."""
        nonlocal divides_by_zero
        while operators and RANK[operators[-1]] >= rank:
            operator, right = operators.pop(), values.pop()
            if operator == "/" and right == 0:  # told at the end, of what is an expression
                divides_by_zero, right = True, Fraction(1)
            values.append(
                -right if operator == NEGATIVE else OPERATION[operator](values.pop(), right)
            )

    at, expects_value = 0, True
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"character {at} belongs to no expression")
        at = found.end()
        number, sign = found.groups()
        is_sign = expects_value and sign in ("+", "-")
        if expects_value != (number is not None or sign == "(" or is_sign):
            raise ValueError(f"a value or an operator is missing before character {at}")
        if number is not None:
            values.append(Fraction(number.replace(",", "")))
            expects_value = False
        elif expects_value:
            if sign != "+":  # +1 is 1
                operators.append("(" if sign == "(" else NEGATIVE)
        elif sign == ")":
            apply_down_to(1)
            if not operators:
                raise ValueError("a bracket is closed that was not opened")
            operators.pop()
        else:
            apply_down_to(RANK[sign])
            operators.append(sign)
            expects_value = True
    if not expects_value:
        apply_down_to(1)
    if expects_value or operators:
        raise ValueError("the expression is not complete")
    if divides_by_zero:
        raise ZeroDivisionError
    return values.pop()


def written(value: Fraction) -> str:
    """A number in digits. Raises OverflowError for one of too many before the point."""
    size = abs(value)
    whole = int(size)
    if whole >= 10**MOST_DIGITS:
        raise OverflowError("more digits than a result may have")
    places = MOST_DIGITS
    if 10**MOST_DIGITS % size.denominator:
        before = len(str(whole)) if whole else 1 - len(str(int(1 / size)))  # or minus leading zeros
        places = min(max(SIGNIFICANT - before, 0), MOST_DIGITS)
    digits = str(int(size * 10**places + Fraction(1, 2))).zfill(places + 1)
    border = len(digits) - places
    decimals = digits[border:].rstrip("0")
    text = digits[:border] + ("." + decimals if decimals else "")
    return "-" + text if value < 0 and text != "0" else text
