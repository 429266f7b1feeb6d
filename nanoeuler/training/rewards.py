"""What a reply to a problem earns.

    answer          1 if the reply's first line is the answer, whatever the case of its letters
    number          1 if the reply's last number equals the answer's last: 1000 = 1,000 = 1000.0
    regex           1 if the answer, a regular expression, is found in the reply
    regex:PATTERN   1 if this one is found
    schema:FILE     1 if the reply is JSON that the JSON schema in the file allows
    FILE.py:NAME    the number that your function NAME(prompt, reply, answer) returns

A function of your own may be wrong, or never end, and so may an expression or a schema. They run in
a process of their own, this module, which is asked one line of JSON after another.
"""

import contextlib
import importlib.util
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from nanoeuler.errors import UserError, brief
from nanoeuler.storage.files import read_text
from nanoeuler.system.processes import STARTER, end_with_starter, own_identity

Reward = Callable[[str, str, str], Any]
"""The reward of (prompt, reply, answer)."""

TERM = re.compile(r"(?:(?P<weight>[-+]?[0-9.]+(?:e-?[0-9]+)?)\s*\*\s*)?(?P<name>.*)", re.DOTALL)
OWN = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
SCHEMA = re.compile(r"schema:(?P<file>.+)")
NUMBER = re.compile(
    r"(?<![\d.])(?:(?<![\w)])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)", re.ASCII
)
LOAD_SECONDS = 60
"""The longest that loading a file may take: it may import whatever there is."""
OUTPUT = "reward-output.txt"
"""File of the stage's folder to which functions print."""


def normalise(text: str) -> str:
    """An answer as it is compared: the first line, in small letters, without surrounding space and
    a final full stop."""
    first_line = next(iter(text.strip().splitlines()), "")
    return first_line.strip().removesuffix(".").rstrip().casefold()


def last_number(text: str) -> Decimal | None:
    """The last number of a text, exactly; None where it has none."""
    found = NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return Decimal(found[-1].replace(",", "")) if found else None


def same_answer(prompt: str, reply: str, answer: str) -> bool:
    return normalise(reply) == normalise(answer)


def same_number(prompt: str, reply: str, answer: str) -> bool:
    wanted = last_number(answer)
    if wanted is None:
        raise UserError(
            f"rl.reward: number needs answers with a number, and {brief(answer)} has none; take "
            "another reward, or take the problem out"
        )
    return last_number(reply) == wanted


HERE: dict[str, Reward] = {"answer": same_answer, "number": same_number}
"""Rewards that always end."""


class Rewards:
    """The reward of a configuration: one of those above, or a sum of several."""

    def __init__(self, given: str | Sequence[str], seconds: float, folder: Path):
        """`seconds` are those that a function may take, `folder` takes what it prints.

        Raises `UserError` for a reward that does not exist, or a file that cannot be loaded.
        """
        self.seconds, self.output = seconds, folder / OUTPUT
        self.weights: list[float] = []
        self.names: list[str] = []
        for text in [given] if isinstance(given, str) else given:
            weight, name = read_term(text)
            self.weights.append(weight)
            self.names.append(name)
        if not self.names:
            raise UserError("rl.reward is an empty list; name a reward, such as answer")
        self.process: subprocess.Popen[bytes] | None = None
        if self.apart:
            self.start()

    @property
    def apart(self) -> list[str]:
        """The rewards that run in a process of their own."""
        return [name for name in self.names if name not in HERE]

    @property
    def files(self) -> list[Path]:
        """The files on whose content the rewards depend."""
        named = (OWN.fullmatch(name) or SCHEMA.fullmatch(name) for name in self.names)
        return [Path(found["file"]) for found in named if found]

    def of(self, prompt: str, reply: str, answer: str) -> float:
        """Raises `UserError` for a function that raises, does not end, or returns no number."""
        total = 0.0
        for weight, name in zip(self.weights, self.names, strict=True):
            if name in HERE:
                value = float(HERE[name](prompt, reply, answer))
            else:
                value = self.ask(name, prompt, reply, answer)
            total += weight * value
        return total

    # ---- the process of functions

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with open(self.output, "ab") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(2 * self.seconds), *self.apart],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                env=os.environ | {STARTER: own_identity()},
                bufsize=0,
            )
        loaded = self.read("loading", LOAD_SECONDS)
        if "error" in loaded:
            self.refuse(f"rl.reward: {loaded['error']}; correct it")

    def ask(self, name: str, prompt: str, reply: str, answer: str) -> float:
        assert self.process is not None
        assert self.process.stdin is not None
        told = f"{name} with the reply {brief(reply)}"
        with contextlib.suppress(OSError):  # it has ended, which `read` will say
            self.process.stdin.write(json.dumps([name, prompt, reply, answer]).encode() + b"\n")
        found = self.read(told, self.seconds)
        if "error" in found:
            self.refuse(f"rl.reward: {told}: {found['error']}; correct it")
        value: float = found["value"]
        if not math.isfinite(value):
            self.refuse(f"rl.reward: {told} returned {value}: it must return a finite number")
        return value

    def read(self, doing: str, seconds: float) -> dict[str, Any]:
        """The next line that the process writes."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        line, until = b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            left = max(0.0, until - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                self.refuse(
                    f"rl.reward: {doing} took more than {seconds:g} seconds; make it faster, or "
                    "raise rl.reward_seconds"
                )
            part = os.read(process.stdout.fileno(), 65536)
            if not part:
                self.refuse(
                    f"rl.reward: {doing} ended its process; {self.output} has what it printed"
                )
            line += part
        found: dict[str, Any] = json.loads(line)
        return found

    def refuse(self, sentence: str) -> NoReturn:
        """End the process, and raise a `UserError`."""
        self.close()
        raise UserError(sentence)

    def close(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
            self.process = None


def read_term(text: str) -> tuple[float, str]:
    """Weight and name of a reward: "0.5 * number". Raises `UserError` where there is no such."""
    found = TERM.fullmatch(text.strip())
    assert found is not None  # the name may be anything
    name = found["name"]
    try:
        weight = float(found["weight"] or 1)
    except ValueError:
        weight = math.nan
    known = name in HERE or name == "regex" or name.startswith("regex:")
    known = known or OWN.fullmatch(name) or SCHEMA.fullmatch(name)
    if not known or not math.isfinite(weight):
        raise UserError(
            f"rl.reward: {brief(text)} is no reward; give answer, number, regex, regex:PATTERN, "
            "schema:FILE or FILE.py:FUNCTION, if need be with a weight in front (0.5 * number)"
        )
    return weight, name


# ---- within the process


def load(name: str) -> Reward:
    """The reward of a name that is none of `HERE`. Raises whatever is wrong with it."""
    own, schema = OWN.fullmatch(name), SCHEMA.fullmatch(name)
    found = own or schema
    if found is None:
        pattern = re.compile(name.partition(":")[2]) if ":" in name else None
        return lambda prompt, reply, answer: bool(re.search(pattern or answer, reply))
    path = Path(found["file"])
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file from here ({Path.cwd()})")
    return own_function(path, own["name"]) if own else allowed_by(path)


def allowed_by(path: Path) -> Reward:
    """Whether a reply is JSON that the schema in `path` allows. Nothing is fetched for it."""
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(read_text(path))
    kind = validator_for(schema)
    kind.check_schema(schema)
    validator = kind(schema, registry=Registry())

    def allowed(prompt: str, reply: str, answer: str) -> bool:
        try:
            value = json.loads(reply)
        except (ValueError, RecursionError):
            return False
        return bool(validator.is_valid(value))

    return allowed


def own_function(path: Path, name: str) -> Reward:
    """The function of that name in a file of the user's."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Reward | None = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"{path} defines no function {name}")
    return function


def described(error: BaseException, name: str) -> str:
    """What went wrong, and in which line of the user's file."""
    own = OWN.fullmatch(name)
    path = str(Path(own["file"]).resolve()) if own else None
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if path and os.path.realpath(frame.filename) == path
    ]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {brief(str(error), 300)}{where}"


def judge(names: Sequence[str], most_seconds: float) -> None:
    """Answer questions on standard input, one a line, until it ends.

    What functions print goes to standard error, and they read nothing. One that takes longer than
    `most_seconds` ends the process, if nobody else does.
    """
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def tell(found: dict[str, Any]) -> None:
        told.write(json.dumps(found).encode() + b"\n")

    rewards = {}
    for name in names:
        try:
            rewards[name] = load(name)
        except BaseException as error:  # of any code, `exit()` too
            tell({"error": f"{name} cannot be loaded: {described(error, name)}"})
            return
    tell({"ready": True})
    for line in asked:
        name, *given = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, most_seconds)
        try:
            value = rewards[name](*given)
            if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
                raise TypeError(f"it returned {brief(repr(value))}, which is no number")
            found: dict[str, Any] = {"value": float(value)}
        except BaseException as error:
            found = {"error": described(error, name)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        tell(found)


if __name__ == "__main__":
    # A terminal and a cluster send them to all processes; the trainer saves, and asks until then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, none for programs that it starts
    end_with_starter(lambda: os._exit(1))
    judge(sys.argv[2:], float(sys.argv[1]))
