"""Preference pairs to align a model with."""

from pathlib import Path

from nanoeuler.corpus.sources.data_sets import SPLIT_FOLDER, TuningData
from nanoeuler.corpus.sources.source import Config, DataSet, Option, Step


class Preferences(TuningData):
    """What `dpo` learns from."""

    name = title = "preferences"
    entries = dict[str, DataSet]
    meaning = "data sets of preference pairs by name"
    stage = "dpo"

    def __init__(self) -> None:
        self.steps = (
            Step(
                rule="fetch_preferences",
                command="preferences",
                message="Fetching and checking the preferences {wildcards.item}",
                run=self.prepare,
                options=(
                    Option(
                        "--name",
                        None,
                        "name in the sources file, or the path of a file of pairs (JSON, JSON "
                        "lines or parquet)",
                        str,
                    ),
                    SPLIT_FOLDER,
                ),
                values=self.given,
                outputs=self.manifest,
                sections="sources.preferences and dpo.validation_share",
                reads=(
                    "dpo.preferences",
                    "dpo.validation_share",
                    "sources.preferences.{dpo.preferences}",
                ),
                megabytes=2000,
            ),
        )

    def prepare(self, config: Config, name: str, output: Path) -> None:
        from nanoeuler.corpus.preferences import prepare

        prepare(name, self.listed(config), self.share(config), output)


SOURCE = Preferences()
