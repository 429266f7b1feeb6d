"""Convert preference pairs, two replies to one prompt of which one is better, to checked records.

    nanoeuler preferences --config config/small.yaml --name alpaca_farm \\
        --output data/preferences/alpaca_farm

They are read in these formats:

    instruction, input, output_1, output_2, preference
                    `preference` is the better output, 1 or 2 (AlpacaFarm)
    prompt | question [, system], chosen, rejected
                    texts, or lists of messages that end with the reply (UltraFeedback, Orca)
    messages | conversations, chosen, rejected
                    the prompt is a conversation that waits for a reply (chat, ShareGPT)

Pairs that nothing can be learned from are left out and counted. All pairs of one prompt are on one
side of the split.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.dialogue import Turn, Unusable, check_text, read_message, read_prompt
from nanoeuler.corpus.download import Source, local_copy
from nanoeuler.corpus.instructions import check_records, find_entry, split, write_splits
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.folders import require_ours

Pair = dict[str, Any]
"""instruction, input, chosen, rejected and, for a conversation, `earlier`: the turns before."""
WANTED = "prompt, chosen and rejected, or instruction, output_1, output_2 and preference"


def prepare(
    name: str,
    sources: Mapping[str, Any],
    validation_share: float,
    output: Path,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Write {train,validation}.jsonl and, last, manifest.json to `output`; return the manifest.

    `name` is one of `sources` (the section preferences of the sources file) or the path of a file.
    Raises `UserError` when that cannot be read, or when more than half of its pairs are bad.
    """
    entry = find_entry(name, sources, "preferences")
    source = Source.from_entry(entry)
    require_ours(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with local_copy(source, output, patience) as copy:
        pairs, bad, copies = check_records(copy.path, source.url, read_pair, WANTED)
        origin = {"url": source.url, "revision": copy.revision, "sha256": copy.sha256}
    splits = split(pairs, validation_share, source.url)
    manifest: dict[str, Any] = {
        "version": 1,
        "name": name,
        **origin,
        "licence": entry.get("licence"),
        "validation_share": validation_share,
        "pairs": len(pairs),
        "chosen_is_longer": sum(len(pair["chosen"]) > len(pair["rejected"]) for pair in pairs),
        "bad": dict(bad),
        "duplicates": copies,
    }
    write_splits(output, splits, manifest, "pairs")
    log.line(
        "preferences",
        name=name,
        pairs=len(pairs),
        validation=len(splits["validation"]),
        bad=bad.total(),
        duplicates=copies,
    )
    return manifest


def read_pair(value: Any) -> Pair:
    """Read the pair in a JSON value. Raises `Unusable`."""
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    earlier: list[Turn] = []
    if "output_1" in value or "output_2" in value:
        instruction = check_text(value.get("instruction"), "instruction")
        outputs = [check_text(value.get(name), name) for name in ("output_1", "output_2")]
        preference = value.get("preference")
        if isinstance(preference, bool) or preference not in (1, 2):
            raise Unusable("preference is neither 1 nor 2")
        chosen, rejected = outputs if preference == 1 else outputs[::-1]
    else:
        before, chosen = read_side(value.get("chosen"), "chosen")
        before_rejected, rejected = read_side(value.get("rejected"), "rejected")
        if before and before_rejected and before != before_rejected:
            raise Unusable("chosen and rejected reply to different prompts")
        earlier, instruction = read_prompt_of(value, before or before_rejected)
    if chosen.strip() == rejected.strip():
        raise Unusable("both sides are the same")
    context = value.get("input")
    pair: Pair = {
        "instruction": instruction,
        "input": check_text("" if context is None else context, "input", may_be_empty=True),
        "chosen": chosen,
        "rejected": rejected,
    }
    return pair | ({"earlier": earlier} if earlier else {})


def read_side(value: Any, name: str) -> tuple[list[Any], str]:
    """Return the messages before a reply, if it comes with some, and the reply."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise Unusable(f"{name} is empty")
        role, reply = read_message(value[-1], name)
        if role != "assistant":
            raise Unusable(f"{name} does not end with a reply")
        return list(value[:-1]), reply
    return [], check_text(value, name)


def read_prompt_of(value: Mapping[str, Any], before: list[Any]) -> tuple[list[Turn], str]:
    """Return the earlier turns and the instruction of a pair.

    `before` has the messages in front of the replies. They are the prompt if no field gives one, or
    if there are more of them than the one that a `prompt` of text repeats.
    """
    names = ("prompt", "instruction", "question", "messages", "conversations")
    given = (value[name] for name in names if value.get(name) is not None)
    prompt = next(given, before)
    if isinstance(prompt, str) and len(before) > 1:
        prompt = before
    if isinstance(prompt, str):
        text = check_text(prompt, "prompt")
        system = check_text(value.get("system") or "", "system", may_be_empty=True)
        return [], f"{system}\n\n{text}" if system.strip() else text
    if not isinstance(prompt, Sequence) or not prompt:
        raise Unusable("prompt is missing")
    return read_prompt(prompt, "the prompt")
