"""Problems with checkable answers, to learn from the rewards of replies to them."""

from nanoeuler.corpus.sources.data_sets import TuningData
from nanoeuler.corpus.sources.source import DataSet


class Problems(TuningData):
    """Data of `rl`."""

    name = title = "problems"
    entries = dict[str, DataSet]
    meaning = "data sets of problems with checkable answers by name"
    stage = "rl"
    shapes = "JSON, JSON lines or parquet, with a question and its answer"


SOURCE = Problems()
