"""The process in which a campaign's cases run: fenced, and replaced when it hangs or dies.

It may use a gibibyte more of memory than it has after loading, and reaches this machine only. What
the cases print goes to a file, which must never hold what a terminal would obey.
"""

import gc
import os
import random
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzz.campaigns import CAMPAIGNS
from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.mutation import Mutator
from nanoeuler import log
from nanoeuler.errors import UserError

MEMORY = 1 << 30  # bytes that a case may use on top of what the loaded process has
LARGEST_FILE = 1 << 26  # bytes: an endless download does not fill the disk
LONGEST_SENTENCE = 4_000  # characters
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys, but for tabs and line ends."""
LOOPBACK = ("127.0.0.1", "::1", "localhost", b"localhost", b"127.0.0.1", "", None)


@dataclass
class Outcome:
    """How a case ended."""

    kind: str  # "accepted", "refused" or a kind of finding
    detail: str = ""  # the sentence, or the traceback
    place: str = ""  # tells findings apart: the exception and the line that raised it
    seconds: float = 0.0
    peak: int = 0  # bytes that the process has had in memory at most

    @property
    def found(self) -> bool:
        return self.kind not in ("accepted", "refused")


def random_of(seed: int, campaign: str, case: int) -> random.Random:
    return random.Random(f"{seed} {campaign} {case}")


def serve(
    connection: Connection, name: str, seed: int, material: Path, scratch: Path, fenced: bool = True
) -> None:
    """Run the cases whose numbers arrive, and answer each with its `Outcome`."""
    scratch.mkdir(parents=True, exist_ok=True)
    settle(scratch)
    campaign = CAMPAIGNS[name](material)
    if fenced:
        fence()
    connection.send(None)  # ready
    while (case := connection.recv()) is not None:
        connection.send(run(campaign, random_of(seed, name, case), scratch / "case"))


def settle(scratch: Path) -> None:
    """Keep what readers leave on a machine (locks, caches, settings) inside `scratch`."""
    for name in ("temporary", "home"):
        (scratch / name).mkdir(exist_ok=True)
    os.environ |= {
        "TMPDIR": str(scratch / "temporary"),
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": str(scratch / "home/.cache"),
        "no_proxy": "127.0.0.1,localhost",
        "OPENBLAS_NUM_THREADS": "1",
    }
    os.environ.pop("HF_TOKEN", None)
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    said = os.open(scratch / "said.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.addaudithook(refuse_the_world)


def refuse_the_world(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no case reach another machine."""
    if event == "socket.getaddrinfo" and arguments[0] not in LOOPBACK:
        raise socket.gaierror(socket.EAI_NONAME, "no name is looked up in a campaign")
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    if arguments[1][0] not in LOOPBACK:
        raise OSError(101, "no other machine is reached in a campaign")


def fence() -> None:
    """Limit files, and the memory to come where the system tells what a process has (Linux)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    statm = Path("/proc/self/statm")
    if statm.exists():
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + MEMORY, have + MEMORY))


def run(campaign: Campaign, rng: random.Random, folder: Path) -> Outcome:
    """One case, in an empty `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    said = folder.parent / "said.txt"
    os.truncate(said, 0)
    log.start()
    began = time.monotonic()
    outcome = Outcome("accepted")
    try:
        campaign.run(Mutator(rng), folder)
    except UserError as error:
        outcome = Outcome("refused", str(error))
        log.line("error", str(error))
    except BrokenPromise as change:
        outcome = Outcome("broken promise", str(change), str(change).splitlines()[0][:60])
    except BaseException as error:  # SystemExit and KeyboardInterrupt are findings, too
        outcome = Outcome("traceback", traceback.format_exc(limit=-30), where(error))
    outcome.seconds = time.monotonic() - began
    os.chdir(folder.parent)
    printed = read_said(said)
    if not outcome.found and (obeyed := OBEYED.search(printed)):
        at = obeyed.start()
        piece = printed[max(0, at - 200) : at + 200]
        outcome = Outcome("unprintable", repr(piece), f"{obeyed.group()!r} {piece[:20]!r}")
    if not outcome.found and "Traceback (most recent call last)" in printed:
        outcome = Outcome("traceback", printed, printed.rstrip().splitlines()[-1][:80])
    if outcome.kind == "refused" and len(outcome.detail) > LONGEST_SENTENCE:
        outcome = Outcome("endless sentence", outcome.detail, outcome.detail[:40])
    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome.peak = peak if sys.platform == "darwin" else peak << 10
    return outcome


def read_said(path: Path) -> str:
    sys.stdout.flush()
    sys.stderr.flush()
    return path.read_text(encoding="utf-8", errors="replace")


def where(error: BaseException) -> str:
    """The exception, and the last line of this project that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/nanoeuler/" in frame.filename] or frames
    path = ours[-1].filename
    short = path[path.rfind("/nanoeuler/") + 1 :]
    return f"{type(error).__name__} {short}:{ours[-1].lineno}"
