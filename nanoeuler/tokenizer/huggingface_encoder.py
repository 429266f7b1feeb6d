"""Encode with the `tokenizers` library, for imported models whose words are not GPT-2's.

Slower than our encoder, and with the same contract. The library works in processes of its own,
within limits, as a tokenizer may be anybody's: see `tokenizers_process`.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.tokenizer import sentencepiece
from nanoeuler.tokenizer.tokenizers_process import receive, send
from nanoeuler.tokenizer.vocabulary import Vocabulary

TRIED = (
    *(character * 3000 for character in "a \n\t1.-_<é日\u0301\u200b\U0001f389"),
    *(part * 700 for part in ("ab", "a ", " \n", "a1", "1.", "'s", "<a>", "Aé")),
    "".join(map(chr, range(1, 0x2000))),
    "It's 12345 o'clock.\n\n  The harbour lies below the hill; where does Bea live? " * 20,
)
"""Texts on which regular expressions and replacements explode, if on any, and one of prose."""


ALONE = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
)
"""A process of the library uses one core."""


class HuggingFaceEncoder:
    """Encodes with one vocabulary, in any number of threads at once."""

    def __init__(self, vocabulary: Vocabulary):
        """Raises `UserError` without the library, or for a tokenizer that it does not read."""
        if importlib.util.find_spec("tokenizers") is None:
            raise UserError(
                "this tokenizer cuts words in another way than GPT-2's, which the tokenizers "
                "library does; install it with pip install 'nanoeuler[tokenizers]'"
            )
        assert vocabulary.foreign is not None
        contents = [vocabulary.foreign]
        if vocabulary.adds_space:
            contents.append(sentencepiece.continuing(vocabulary.foreign))
        id_of_byte = {
            token[0]: index for index, token in enumerate(vocabulary.tokens) if len(token) == 1
        }
        self.setting = json.dumps({"contents": contents, "id_of_byte": id_of_byte}).encode()
        self.ids = len(vocabulary.tokens)
        self.idle: list[Library] = []
        """Processes that wait for a text. A thread takes one, or starts one more."""
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.idle.append(Library(self.setting))

    def encode(self, content: bytes, borders: np.ndarray, frame: int, framed: int) -> np.ndarray:
        """Return the ids of the pieces of `content` between `borders`: int32 (ids,).

        The id `frame` precedes each piece from number `framed` on, where a text starts; the pieces
        before continue one. Raises `UserError` where the library fails, or takes too long.
        """
        with self.lock:
            if self.process != os.getpid():  # those of the process that this one was forked from
                self.process, self.idle = os.getpid(), []
            library = self.idle.pop() if self.idle else None
        library = library or Library(self.setting)
        given = np.concatenate([[framed, frame], borders]).astype(np.int64)
        ids = library.answer(given.tobytes(), content, f"a text of {len(content):,} bytes")
        with self.lock:
            self.idle.append(library)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.ids:
            raise UserError(
                "this tokenizer gives ids that its vocabulary does not have; give another one"
            )
        return ids

    def try_out(self) -> None:
        """Encode texts of all kinds. Raises `UserError` like `encode`."""
        for text in TRIED:
            content = text.encode()
            self.encode(content, np.array([0, len(content)]), 0, 0)


class Library:
    """A process with the library and one tokenizer. It ends when nothing refers to it."""

    def __init__(self, setting: bytes):
        """Raises `UserError` for a tokenizer that the library does not read."""
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "nanoeuler.tokenizer.tokenizers_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a panic would print a backtrace
            env=os.environ | {"PYTHONPATH": path} | ALONE,
        )
        weakref.finalize(self, end, self.child, os.getpid())
        self.answer(setting, None, "this tokenizer")

    def answer(self, first: bytes, content: bytes | None, what: str) -> np.ndarray:
        """The ids for a message. Raises `UserError` where there are none."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            for message in (first, content) if content is not None else (first,):
                send(self.child.stdin, message)
            self.child.stdin.flush()
            said = receive(self.child.stdout)
        except BrokenPipeError:
            said = None
        ids = receive(self.child.stdout)
        if said is not None and ids is not None:
            if said == b"ok":
                return np.frombuffer(ids, np.int32)
            reason = brief(said.decode("utf-8", "replace"))
        else:
            reason = ending(self.child.wait())
        raise UserError(
            f"the tokenizers library does not read {what}: {reason}; give another tokenizer, or "
            "fetch it again"
        )


def ending(status: int) -> str:
    """Why a process of the library ended."""
    if status == -signal.SIGPROF:
        return "it takes too long, as by a regular expression that explodes"
    if status < 0:
        return (
            f"it ended by {signal.Signals(-status).name}, as where a file is damaged or too much "
            "memory is asked for"
        )
    return f"it ended with status {status}"


def end(child: "subprocess.Popen[bytes]", parent: int) -> None:
    if os.getpid() != parent:  # forked from it
        return
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    child.kill()
    child.wait()
