"""The mistakes that people make in each op: a bank of small changes of the specification.

The tests plant each one and see that the checks catch it. `nanoeuler check --candidate` compares
what a learner's op computes with what each mistake computes, and says the sentence of the one that
computes the same.
"""

from nanoeuler.lessons.mistakes import (
    attention,
    gates,
    losses,
    norms,
    optimizers,
    products,
    tokens,
)
from nanoeuler.lessons.mistakes.mistake import Mistake

MISTAKES: list[Mistake] = [
    *products.MISTAKES,
    *norms.MISTAKES,
    *attention.MISTAKES,
    *gates.MISTAKES,
    *losses.MISTAKES,
    *optimizers.MISTAKES,
    *tokens.MISTAKES,
]
