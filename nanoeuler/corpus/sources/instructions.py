"""Instructions to tune a model on."""

from pathlib import Path
from typing import Literal

from nanoeuler.corpus.sources.data_sets import SPLIT_FOLDER, TuningData
from nanoeuler.corpus.sources.source import Config, DataSet, Option, Step
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
    """What `sft` learns from."""

    name = title = "instructions"
    entries = dict[str, Entry]
    meaning = "instruction data sets by name; each has a url, or is a mixture of several"
    stage = "sft"

    def __init__(self) -> None:
        self.steps = (
            Step(
                rule="fetch_instructions",
                command="instructions",
                message="Fetching and checking the instructions {wildcards.item}",
                run=self.prepare,
                options=(
                    Option(
                        "--name",
                        None,
                        "name in the sources file, or the path of a file (Alpaca's or Dolly's "
                        "shape, or messages)",
                        str,
                    ),
                    SPLIT_FOLDER,
                ),
                values=self.given,
                outputs=self.manifest,
                sections="sources.instructions and sft.validation_share",
                reads=(
                    "sft.instructions",
                    "sft.validation_share",
                    "sources.instructions.{sft.instructions}",
                ),
            ),
        )

    def prepare(self, config: Config, name: str, output: Path) -> None:
        from nanoeuler.corpus.instructions import prepare

        prepare(name, self.listed(config), self.share(config), output)


SOURCE = Instructions()
