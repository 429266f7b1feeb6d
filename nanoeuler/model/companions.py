"""The files of a model folder that are for other tools: transformers, llama.cpp, model hubs.

They say how text becomes a prompt, when a reply has ended, and what the model is. Nothing in this
project reads them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from nanoeuler.log import printable
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.template import TEMPLATES, chat_template
from nanoeuler.storage.files import atomic_write, write_json
from nanoeuler.tokenizer.vocabulary import Vocabulary

TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
CARD = "README.md"
COMPANIONS = (TOKENIZER_CONFIG, GENERATION_CONFIG, CARD)

SAMPLING = {"temperature": 0.7, "top_k": 0, "top_p": 0.95}
"""How transformers chooses tokens: as `generate` and `chat` do by default."""

USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
{prompt}
reply = model.generate(**ids, max_new_tokens=100)[0, ids["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))
```
"""
CHAT = """\
messages = [{"role": "user", "content": "Name a colour."}]
ids = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)"""
CALCULATOR = """\
It writes expressions between the tokens `<|reserved_4|>` and `<|reserved_5|>`, and nanoeuler writes
their results. Other programs do not calculate: there it is kept from such calls, or must write the
results itself, which it has not learned.
"""
CONTINUE = 'ids = tokenizer("Once upon a time", return_tensors="pt")'
AS_CODES = """\
Its weights are whole numbers with scales, which nanoeuler computes with; `nanoeuler export` writes
a model that transformers has a class for.
"""
ELSEWHERE = """\
transformers has no class for blocks with this step size; `nanoeuler export` writes a model that it
has one for.
"""


class Described(Protocol):
    """The part of a `SavedModel` that the companions hold."""

    config: ModelConfig
    stage: str
    template: str | None
    calculator: bool
    info: dict[str, Any]

    @property
    def quantized(self) -> object:
        """Its weights as codes and scales, if it has them."""


def write_companions(
    folder: Path,
    model: Described,
    vocabulary: Vocabulary,
    *,
    known_to_transformers: bool,
    matter: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the companions to `folder`; `matter` adds to the card's front matter."""
    write_json(folder / TOKENIZER_CONFIG, tokenizer_config(model, vocabulary))
    write_json(folder / GENERATION_CONFIG, generation_config(model, vocabulary))
    with atomic_write(folder / CARD) as file:
        library = "transformers" if known_to_transformers else "nanoeuler"
        whole = {"library_name": library, **front_matter(model), **matter}
        end = f"`{vocabulary.end_literal}`"
        file.write(card(model, whole, end, known_to_transformers=known_to_transformers))


def tokenizer_config(model: Described, vocabulary: Vocabulary) -> dict[str, Any]:
    """transformers' tokenizer_config.json, and the chat template."""
    end = vocabulary.end_literal
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "pad_token": end,
        "add_bos_token": True,
        "model_max_length": model.config.context,
        "clean_up_tokenization_spaces": False,
    }
    if model.template in TEMPLATES:
        values["chat_template"] = chat_template(model.template)
    return values


def generation_config(model: Described, vocabulary: Vocabulary) -> dict[str, Any]:
    """How transformers writes: as `generate` does, which chooses no special token but the end, and
    no row of the embedding that no token has."""
    end, specials = vocabulary.end_id, vocabulary.specials.values()
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    spare = range(len(vocabulary.tokens), model.config.vocab_size)
    never = [id for id in (*specials, *spare) if id != end] or None
    return {**ids, "suppress_tokens": never, "do_sample": True, **SAMPLING}


def front_matter(model: Described) -> dict[str, Any]:
    """Front matter for hubs; the only licence is the one that the data forces."""
    licence = forced_licence(learned_from(model.info).values())
    return {
        "pipeline_tag": "text-generation",
        **({"license": licence} if licence else {}),
        "tags": ["nanoeuler", model.stage],
    }


def learned_from(info: Mapping[str, Any]) -> dict[str, str]:
    """Name → licence of the model and the records that a model was made from, by its `info`."""
    found = {}
    for kind, noun in (
        ("imported", "model"),
        ("instructions", "instructions"),
        ("preferences", "preferences"),
        ("problems", "problems"),
    ):
        if isinstance(material := info.get(kind), dict):
            name = f"{material.get('name') or 'unnamed'} {noun}"
            found[name] = str(material.get("licence") or "unknown")
    return found


def plain(text: str) -> str:
    """A text from outside in a line of Markdown, in which HTML would be obeyed."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")


def card(
    model: Described, matter: Mapping[str, Any], end: str, *, known_to_transformers: bool
) -> str:
    """The model card as Markdown behind YAML front matter. JSON is YAML, whatever the text."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in matter.items()]
    prompt = CONTINUE if model.template is None else CHAT
    learned = [
        f"- {plain(f'{name}: {licence}')}" for name, licence in learned_from(model.info).items()
    ]
    elsewhere = AS_CODES if model.quantized else ELSEWHERE
    parts = [
        "\n".join(["---", *lines, "---"]),
        f"# A language model of {parameter_count(model.config):,} parameters",
        f"A model of nanoeuler (stage {model.stage}), which reads and writes "
        f"{model.config.context} tokens. Every text begins with the token {end}, as in training.",
        USE.format(prompt=prompt).strip() if known_to_transformers else elsewhere.strip(),
        *(["It was made from:\n\n" + "\n".join(learned)] if learned else []),
        *([CALCULATOR.strip()] if model.calculator else []),
        "Expect sentences that read well and are wrong: a model of this size knows little.",
    ]
    return printable("\n\n".join(parts) + "\n")


def is_non_commercial(licence: str) -> bool:
    words = licence.casefold().replace("-", " ").split()
    return "nc" in words or "noncommercial" in words or ("non" in words and "commercial" in words)


def forced_licence(licences: Iterable[str]) -> str | None:
    """The licence that data under these forces on a model, as hubs name it; None where the owner
    chooses."""
    restricted = {licence for licence in licences if is_non_commercial(licence)}
    if not restricted:
        return None
    named = {re.sub(r"[\s_]+", "-", licence.strip()).casefold() for licence in restricted}
    return "cc-by-nc-4.0" if named == {"cc-by-nc-4.0"} else "other"
