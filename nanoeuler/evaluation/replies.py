"""Replies to instructions, and continuations of texts: the raw material of scores and samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.likelihood import Share, in_order
from nanoeuler.model.template import TEMPLATES


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int
    stopped: bool  # by itself, with `</s>`; False: cut off at the limit


def share_repeated(text: str, words: int = 4) -> float:
    """Share of a text's runs of four words that repeat an earlier one: 1 − different runs / runs,
    and 0 for a text of fewer words.

    This is seq-rep-4 of Welleck et al. 2019 (section 6), over words instead of tokens, so that
    models with different tokenizers compare.
    """
    split = text.split()
    runs = [tuple(split[start : start + words]) for start in range(len(split) - words + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def describe_replies(replies: Sequence[Reply]) -> dict[str, float]:
    """Share of the replies that stop, mean length in tokens and words, mean `share_repeated`."""
    count = len(replies)
    return {
        "stopped": sum(reply.stopped for reply in replies) / count,
        "mean_reply_tokens": sum(reply.tokens for reply in replies) / count,
        "mean_reply_words": sum(len(reply.text.split()) for reply in replies) / count,
        "repetition": sum(share_repeated(reply.text) for reply in replies) / count,
    }


def reply_to_instructions(
    writer: Writer,
    template: str,
    instructions: Sequence[tuple[str, str]],
    sampling: Sampling,
    max_tokens: int,
    rows: int = 64,
    spacing: int = 0,
    share: Share = in_order,
) -> list[Reply]:
    """Answer (instruction, input) pairs through the prompt template, framed as in training:
    `</s>` prompt response `</s>`. `spacing` and `share`: see `Writer.batch`."""
    prompts = [TEMPLATES[template](instruction, input) for instruction, input in instructions]
    return continue_texts(writer, prompts, sampling, max_tokens, rows, spacing, share)


def continue_texts(
    writer: Writer,
    texts: Sequence[str],
    sampling: Sampling,
    max_tokens: int,
    rows: int = 64,
    spacing: int = 0,
    share: Share = in_order,
) -> list[Reply]:
    """Continue each text as the start of a document. `spacing` and `share`: see `Writer.batch`."""
    prompts = [writer.frame(text) for text in texts]
    continuations = writer.batch(prompts, sampling, max_tokens, rows, spacing, share)
    return [
        Reply(writer.tokenizer.decode(each.ids, continues=True), len(each.ids), each.ended)
        for each in continuations
    ]
