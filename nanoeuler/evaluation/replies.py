"""What a model replies to instructions, or how it goes on with a text: the raw material of scores and samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.template import TEMPLATES


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int
    stopped: bool  # by itself, with `</s>`; False: cut off at the limit


def reply_to_instructions(
    writer: Writer, template: str, instructions: Sequence[tuple[str, str]], sampling: Sampling, max_tokens: int, rows: int = 64, apart: int = 0
) -> list[Reply]:
    """Answer (instruction, input) pairs through the prompt template, in the framing of training: `</s>` prompt response `</s>`."""
    fill = TEMPLATES[template]
    return continue_texts(writer, [fill(instruction, input) for instruction, input in instructions], sampling, max_tokens, rows, apart)


def continue_texts(writer: Writer, texts: Sequence[str], sampling: Sampling, max_tokens: int, rows: int = 64, apart: int = 0) -> list[Reply]:
    """Go on with each text as the start of a document. `apart`: see `Writer.batch`."""
    continuations = writer.batch([writer.frame(text) for text in texts], sampling, max_tokens, rows, apart)
    return [Reply(writer.tokenizer.decode(each.ids), len(each.ids), each.ended) for each in continuations]
