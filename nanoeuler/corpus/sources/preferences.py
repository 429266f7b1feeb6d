"""Preference pairs to align a model with."""

from nanoeuler.corpus.sources.data_sets import TuningData
from nanoeuler.corpus.sources.source import DataSet


class Preferences(TuningData):
    """Data of `dpo`."""

    name = title = "preferences"
    entries = dict[str, DataSet]
    meaning = "data sets of preference pairs by name"
    stage = "dpo"
    shapes = "JSON, JSON lines or parquet, with two replies to each prompt"
    megabytes = 2000


SOURCE = Preferences()
