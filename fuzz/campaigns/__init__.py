"""One campaign a reader: it damages valid input, and runs the reader on it.

A case ends well when the reader accepts its input or raises `UserError`. Everything else is a
finding: another exception, more than ten seconds, the end of the process, control characters in
what is printed, or a `BrokenPromise`.
"""

from fuzz.campaigns.arguments import Arguments
from fuzz.campaigns.base import Campaign
from fuzz.campaigns.checkpoints import Checkpoints
from fuzz.campaigns.config import Config
from fuzz.campaigns.exchange import Exchange
from fuzz.campaigns.http import Http
from fuzz.campaigns.names import Names
from fuzz.campaigns.parquet import Parquet
from fuzz.campaigns.records import Records
from fuzz.campaigns.requests import Requests
from fuzz.campaigns.results import Results
from fuzz.campaigns.small import Small
from fuzz.campaigns.texts import Texts
from fuzz.campaigns.tokenizer import Tokenizers

CAMPAIGNS: dict[str, type[Campaign]] = {
    "config": Config,
    "records": Records,
    "texts": Texts,
    "tokenizer": Tokenizers,
    "parquet": Parquet,
    "http": Http,
    "arguments": Arguments,
    "checkpoints": Checkpoints,
    "results": Results,
    "requests": Requests,
    "exchange": Exchange,
    "small": Small,
    "names": Names,
}
