"""Instructions to tune a model on."""

from typing import Literal

from nanoeuler.corpus.sources.data_sets import TuningData
from nanoeuler.corpus.sources.source import DataSet
from nanoeuler.storage.section import key, section


@section
class Part(DataSet):
    """One of the files that a mixture of instructions is made of."""

    weight: float = key(
        "how often each training record is seen in an epoch; 0.5 takes half of them, 2 each twice",
        default=1,
        gt=0,
    )


@section
class Entry(DataSet):
    """Instructions: a file of them, or a mixture of several."""

    url: str = key(
        "https://, http://, hf://datasets/OWNER/NAME/PATH, file:// or a local path",
        optional=True,
        min_length=1,
    )
    mixture: list[Part] = key("the files that are mixed", optional=True, min_length=1)
    format: Literal["alpaca"] = key("shape of the records", default="alpaca")


class Instructions(TuningData):
    """Data of `sft`."""

    name = title = "instructions"
    entries = dict[str, Entry]
    meaning = "instruction data sets by name; each has a url, or is a mixture of several"
    stage = "sft"
    shapes = "Alpaca's or Dolly's shape, or messages"


SOURCE = Instructions()
