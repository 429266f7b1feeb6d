"""The process in which the cases of a campaign run; it is replaced when it hangs or dies.

A case may use a gibibyte more memory than the process has after loading, and reaches this machine
only. What it prints goes to a file, which must hold no control characters.
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
from fuzz.campaigns.base import LARGEST_FILE, BrokenPromise, Campaign
from fuzz.mutation import Mutator
from nanoeuler import log
from nanoeuler.errors import UserError

MEMORY = 1 << 30  # bytes that a case may use on top of what the loaded process has
LONGEST_MESSAGE = 4_000  # characters
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""What a terminal acts on, without tabs and line ends."""
LOOPBACK = ("127.0.0.1", "::1", "localhost", b"localhost", b"127.0.0.1", "", None)


@dataclass
class Outcome:
    """How a case ended."""

    kind: str  # "accepted", "refused" or a kind of finding
    detail: str = ""  # the message, or the traceback
    signature: str = ""  # tells findings apart: the exception and the line that raised it
    seconds: float = 0.0
    peak: int = 0  # bytes: the most memory that the process has had

    @property
    def found(self) -> bool:
        return self.kind not in ("accepted", "refused")


def random_of(seed: int, campaign: str, case: int) -> random.Random:
    return random.Random(f"{seed} {campaign} {case}")


def serve(connection: Connection, name: str, seed: int, material: Path, scratch: Path) -> None:
    """Run the cases whose numbers arrive, and answer each with its `Outcome`."""
    scratch.mkdir(parents=True, exist_ok=True)
    isolate(scratch)
    campaign = CAMPAIGNS[name](material)
    limit_resources()
    connection.send(None)  # ready
    while True:
        case = connection.recv()
        connection.send(run(campaign, random_of(seed, name, case), scratch / "case"))


def isolate(scratch: Path) -> None:
    """Keep output, locks, caches and settings inside `scratch`, and other machines out of reach."""
    for name in ("temporary", "home"):
        (scratch / name).mkdir(exist_ok=True)
    os.environ |= {
        "TMPDIR": str(scratch / "temporary"),
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": str(scratch / "home/.cache"),
        "no_proxy": "127.0.0.1,localhost",
    }
    os.environ.pop("HF_TOKEN", None)
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(scratch / "output.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.addaudithook(refuse_other_machines)


def refuse_other_machines(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo" and arguments[0] not in LOOPBACK:
        raise socket.gaierror(socket.EAI_NONAME, "no name is looked up in a campaign")
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    if arguments[1][0] not in LOOPBACK:
        raise OSError(101, "no other machine is reached in a campaign")


def limit_resources() -> None:
    """Limit the size of files and, where the system tells how much is in use (Linux), memory."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    statm = Path("/proc/self/statm")
    if statm.exists():
        in_use = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, in_use + MEMORY))


def run(campaign: Campaign, rng: random.Random, folder: Path) -> Outcome:
    """Run one case in an empty `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    output = folder.parent / "output.txt"
    os.truncate(output, 0)
    log.start()
    began = time.monotonic()
    try:
        campaign.run(Mutator(rng), folder)
        outcome = Outcome("accepted")
    except UserError as error:
        outcome = Outcome("refused", str(error))
        log.line("error", str(error))
    except BrokenPromise as error:
        outcome = Outcome("broken promise", str(error), str(error).splitlines()[0][:60])
    except BaseException as error:  # SystemExit and KeyboardInterrupt are findings, too
        outcome = Outcome("traceback", traceback.format_exc(limit=-30), signature_of(error))
    seconds = time.monotonic() - began
    os.chdir(folder.parent)
    sys.stdout.flush()
    sys.stderr.flush()
    if not outcome.found:
        outcome = check_messages(outcome, output.read_text(encoding="utf-8", errors="replace"))
    gc.collect()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome.peak = peak if sys.platform == "darwin" else peak << 10
    outcome.seconds = seconds
    return outcome


def check_messages(outcome: Outcome, printed: str) -> Outcome:
    """Return the outcome, or what is wrong with the message or with what was printed."""
    if match := CONTROL_CHARACTERS.search(printed):
        piece = printed[max(0, match.start() - 200) : match.start() + 200]
        return Outcome("unprintable", repr(piece), f"{match.group()!r} {piece[:20]!r}")
    if "Traceback (most recent call last)" in printed:
        return Outcome("traceback", printed, printed.rstrip().splitlines()[-1][:80])
    if len(outcome.detail) > LONGEST_MESSAGE:
        return Outcome("endless sentence", outcome.detail, outcome.detail[:40])
    return outcome


def signature_of(error: BaseException) -> str:
    """The exception, and the last line of this project that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/nanoeuler/" in frame.filename] or frames
    path = ours[-1].filename
    short = path[path.rfind("/nanoeuler/") + 1 :]
    return f"{type(error).__name__} {short}:{ours[-1].lineno}"
