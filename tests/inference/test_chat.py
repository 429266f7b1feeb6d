"""The chat: first its lines, one by one, then the program at a real terminal."""

import dataclasses
import itertools
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import nanoeuler
from nanoeuler.inference.chat import Chat
from nanoeuler.inference.conversation import Conversation
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.files import SavedModel, load_config, load_model, save_model
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.model.spec import storage_elements, tensor_table
from tests.waiting import CEILING

CHECKOUT = Path(__file__).resolve().parents[2]


class Terminal:
    """Lines to be typed, and all that was shown. A line may be an exception to raise, as by Ctrl-C
    and Ctrl-D."""

    def __init__(self, *lines):
        self.lines, self.shown = list(lines), ""

    def read_line(self):
        line = self.lines.pop(0) if self.lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    def write(self, text):
        self.shown += text


@pytest.fixture
def chat(tuned_folder):
    """chat(*lines) → the terminal's text after the greeting, for the tuned model, greedily."""
    model = nanoeuler.load(tuned_folder)

    def run(*lines, history=False, sampling=GREEDY, max_tokens=30):
        terminal = Terminal(*lines)
        Chat(
            Conversation(model.writer, model.prompt, history), sampling, max_tokens, terminal.write
        ).run(terminal.read_line)
        greeting, _, rest = terminal.shown.partition("Ctrl-D leaves)\n")
        assert "history" in greeting
        return rest

    return run


@pytest.fixture
def base_chat(base_folder):
    model = nanoeuler.load(base_folder)

    def run(*lines, **settings):
        terminal = Terminal(*lines)
        Chat(
            Conversation(model.writer, None, settings.pop("history", False)),
            GREEDY,
            5,
            terminal.write,
        ).run(terminal.read_line)
        return terminal.shown

    return run


# ---- lines


def test_each_line_is_answered(chat):
    assert (
        chat("Name a colour.", "Count.", "Name a colour.")
        == "blue\none two three four five six seven\nblue\n"
    )


def test_empty_lines_are_passed_over(chat):
    assert chat("", "   ", "Name a colour.", "", "") == "blue\n"


def test_an_empty_line_goes_on_with_a_reply_that_was_cut_off(chat):
    shown = chat("Count.", "", "", "", "", max_tokens=5)
    replies = [line for line in shown.splitlines() if not line.startswith("(")]
    assert "".join(replies) == "one two three four five six seven"
    assert shown.count("(cut off at 5 tokens; an empty line goes on") == 4


def test_quit_and_end_of_input_leave(chat):
    assert chat("/quit", "Count.") == ""
    assert chat(EOFError(), "Count.") == ""


def test_ctrl_c_at_the_prompt_leaves_nothing_but_a_hint(chat):
    assert (
        chat(KeyboardInterrupt(), "Name a colour.")
        == "\n(nothing to stop; Ctrl-D or /quit leaves)\nblue\n"
    )


def test_ctrl_c_stops_the_reply_and_an_empty_line_takes_it_up(tuned_folder):
    model = nanoeuler.load(tuned_folder)
    terminal = Terminal("Count.", "", "Name a colour.")

    def write(text):
        terminal.write(text)
        if terminal.shown.endswith("three"):
            raise KeyboardInterrupt

    Chat(Conversation(model.writer, model.prompt, False), GREEDY, 30, write).run(terminal.read_line)
    assert re.search(
        r"one two three\n\(stopped; an empty line goes on\)\n four five six seven\nblue\n$",
        terminal.shown,
    )


def test_commands_set_what_they_say(chat):
    shown = chat(
        "/temperature 0.5",
        "/top-k 3",
        "/top-p 0.9",
        "/seed 7",
        "/max-tokens 12",
        "/history on",
        "/history off",
        "/history",
        "/reset",
        "/temperature",
    )
    assert shown.splitlines() == [
        "(temperature is 0.5)",
        "(top-k is 3)",
        "(top-p is 0.9)",
        "(seed is 7)",
        "(max-tokens is 12)",
        "(history is on: earlier turns are seen as far as the context allows)",
        "(history is off: every line is taken by itself)",
        "(history is off: every line is taken by itself)",
        "(the conversation is forgotten)",
        "(temperature is 0.5)",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/foo", "(/foo is no command; there are /help, /why, /reset, /temperature"),
        ("/", "(/ is no command"),
        ("/tempreature 1", "(/tempreature is no command; did you mean /temperature?)"),
        ("/temperature hot", "(/temperature hot: it takes a number)"),
        ("/temperature -1", "(temperature is -1.0: it must be 0 (greedy) or above"),
        ("/top-k 1.5", "(/top-k 1.5: it takes a whole number)"),
        ("/max-tokens 0", "(max-tokens is 0: it must be a whole number above 0)"),
        ("/history maybe", "(/history maybe: it is on or off)"),
    ],
)
def test_a_bad_command_gets_one_sentence_and_the_chat_goes_on(chat, line, words):
    shown = chat(line, "Name a colour.")
    assert shown.startswith(words)
    assert shown.count("\n") == 2
    assert shown.endswith("\nblue\n")


def test_help_names_every_command(chat):
    shown = chat("/help")
    for name in (
        "/temperature",
        "/top-k",
        "/top-p",
        "/seed",
        "/max-tokens",
        "/reset",
        "/history",
        "/quit",
    ):
        assert name in shown


def test_why_shows_what_else_each_token_might_have_been(chat, tuned_folder):
    nothing, first, second = chat("/why", "Name a colour.", "/why", "Count.", "/why").split("(each")
    assert nothing == "(there is no reply yet)\nblue\n"
    model = nanoeuler.load(tuned_folder)
    prompt = [model.tokenizer.end_id, *model.tokenizer.encode(model.prompt("Name a colour."))]
    written = [*model.tokenizer.encode("blue"), model.tokenizer.end_id]
    scores_TV = model.logits(prompt + written[:-1])[-len(written) :][:, model.writer.allowed_V]
    shares_TV = np.exp(scores_TV) / np.exp(scores_TV).sum(axis=1, keepdims=True)
    rows = [line.split() for line in first.splitlines()[1:-1]]
    assert "".join(row[1] for row in rows) == "blue(end)"
    assert [row[0] for row in rows] == [f"{share:.0%}" for share in shares_TV.max(axis=1)]
    second_best = np.sort(shares_TV, axis=1)[:, -2]
    told = [float(row[3].strip("<%")) / 100 for row in rows]
    assert told == pytest.approx(second_best, abs=1.1e-3)
    assert "·t" in second
    assert max(map(len, (first + second).splitlines())) <= 80


def test_why_of_a_base_model_whose_reply_outgrew_the_context(base_folder):
    model, terminal = nanoeuler.load(base_folder), Terminal("Once", "/why")
    Chat(Conversation(model.writer, None, False), GREEDY, 120, terminal.write).run(
        terminal.read_line
    )
    assert len(re.findall(r"^ *<?[0-9.]+%  ", terminal.shown, re.M)) == model.config.context


def test_a_space_in_front_sends_a_slash_as_text(chat):
    assert "no command" not in chat(" /foo")


def test_a_line_that_cannot_be_encoded_gets_one_sentence(chat):
    shown = chat("\ud800", "Name a colour.")
    assert "surrogate" in shown.splitlines()[0]
    assert shown.endswith("\nblue\n")


def test_a_line_that_was_not_utf_8_is_answered_and_told(chat):
    notice, reply = chat("caf\ufffd").splitlines()[:2]
    assert (notice, bool(reply)) == ("(the model reads \ufffd where this was not UTF-8)", True)


def test_a_full_context_is_said_aloud(chat):
    shown = chat("Count.", "Count.", "Name a colour.", history=True)
    assert "(the context of 96 tokens is full: 1 oldest turn dropped)" in shown
    assert "oldest tokens dropped)" in chat("word " * 100)


def test_history_is_kept_when_it_is_on(chat):
    # The tuned model never saw two records in a row, so its replies mean nothing here: only that
    # the same question is read differently behind another one.
    sampling = Sampling(temperature=3.0, top_p=1.0)
    alone = chat("Count.", "/seed 1", "Name a colour.", sampling=sampling)
    behind = chat("Count.", "/seed 1", "Name a colour.", sampling=sampling, history=True)
    assert alone != behind
    assert behind != chat(
        "Count.", "/reset", "/seed 1", "Name a colour.", sampling=sampling, history=True
    )


def test_the_same_seed_and_turns_give_the_same_replies(chat):
    sampling = Sampling(temperature=2.0, top_p=1.0)
    first, second = chat("/seed 5", "Count.", "/seed 5", "Count.", sampling=sampling).split(
        "(seed is 5)\n"
    )[1:]
    assert first == second
    asked = chat("Count.", "/seed", "Count.", sampling=sampling)  # which changes nothing
    assert asked.replace("(seed is 1)\n", "") == chat("Count.", "Count.", sampling=sampling)


def test_a_base_model_says_that_it_continues_text(base_chat):
    shown = base_chat("Once", "")
    assert shown.startswith(
        "(a base model, not tuned to answer: it continues the text that you type)\n"
    )
    assert shown.count("(cut off at 5 tokens") == 2


def test_what_a_terminal_would_obey_is_shown_not_obeyed(
    tmp_path, base_folder, tokenizer, tokenizer_path
):
    """The model is made to write one text: its blocks are zero, so that each token's embedding goes
    straight to the head, whose row for the next token is that embedding."""
    written = "\x1b[2J\x07\r\u202e|"
    ids = [*tokenizer.encode("!"), *tokenizer.encode(written), tokenizer.end_id]
    assert len(set(ids)) == len(ids)
    config = dataclasses.replace(load_config(base_folder), dim=len(ids))
    parameters = np.zeros(storage_elements(tensor_table(config)), np.float32)
    weights = FlatBuffer(config, parameters)
    weights["model.norm.weight"][:] = 1
    for place, (token, following) in enumerate(itertools.pairwise(ids)):
        weights["model.embed_tokens.weight"][token, place] = 1
        weights["lm_head.weight"][following, place] = 1
    saved = SavedModel(config, parameters, tokenizer_path, "pretrain", None)
    save_model(tmp_path / "model", saved)
    model, terminal = nanoeuler.load(tmp_path / "model"), Terminal("!")
    Chat(Conversation(model.writer, None, False), GREEDY, 30, terminal.write).run(
        terminal.read_line
    )
    assert terminal.shown.endswith("Ctrl-D leaves)\n\\x1b[2J\\x07\\r\\u202e|\n")
    assert model.generate("!", temperature=0) == written


# ---- the program at a terminal


class Session:
    """`nanoeuler chat` at a pseudo-terminal of its own."""

    def __init__(self, state: Path, *options, columns: int = 200, **variables: str):
        self.terminal, program_side = pty.openpty()
        termios.tcsetwinsize(program_side, (24, columns))
        command = [sys.executable, "-m", "nanoeuler", "chat", *map(str, options)]
        environment = os.environ | {
            "TERM": "dumb",
            "PYTHONPATH": str(CHECKOUT),
            "INPUTRC": os.devnull,
            "XDG_STATE_HOME": str(state),
            "NO_COLOR": "",
        }
        self.process = subprocess.Popen(
            command,
            stdin=program_side,
            stdout=program_side,
            stderr=program_side,
            cwd=CHECKOUT,
            env=environment | variables,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(program_side)
        self.shown = ""

    def expect(self, pattern):
        """Read until `pattern` has come since the last `expect`; returns the text up to it."""
        end = time.monotonic() + CEILING
        while not (match := re.search(pattern, self.shown)):
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                pytest.fail(f"{pattern!r} was not shown, but {self.shown[-500:]!r}")
            try:
                self.shown += (
                    os.read(self.terminal, 65536).decode(errors="replace").replace("\r\n", "\n")
                )
            except OSError:  # the program has left
                pytest.fail(f"the program left with {self.shown[-500:]!r}")
        before, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return before

    def type(self, text):
        os.write(self.terminal, text.encode())

    def rest(self):
        """Wait as a person would: for a moment after its prompt, readline takes keys but does not
        notice signals."""
        time.sleep(0.5)

    def leave(self):
        status = self.process.wait(timeout=CEILING)
        os.close(self.terminal)
        return status


def take_terminal():
    """Make standard input the controlling terminal, so that Ctrl-C becomes SIGINT, and heed that
    signal, which whoever started the tests may have ignored."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def session(tmp_path):
    sessions = []

    def start(*options, **variables):
        sessions.append(Session(tmp_path / "state", *options, **variables))
        return sessions[-1]

    yield start
    for session in sessions:
        if session.process.poll() is None:
            session.process.send_signal(signal.SIGKILL)
            session.process.wait()


def test_a_tuned_model_at_a_terminal(session, tuned_folder):
    chat = session("--model", tuned_folder, "--temperature", "0")
    chat.expect(r"Ctrl-D leaves\)\n> ")
    chat.type("Name a colour.\n")
    assert "\nblue\n(4 tokens, " in chat.expect(r"blue\n\(4 tokens, [0-9,]+ tokens/s\)\n> ")
    chat.type("\n")
    chat.expect(r"\n> ")
    chat.type("/nonsense\n")
    chat.expect(r"/nonsense is no command.*\n> ")
    chat.type("Where does the fox live?\n")
    chat.expect("In the old mill, café “Zur Mühle”.\n\\([0-9]+ tokens, [0-9,]+ tokens/s\\)\n> ")
    chat.type("\x04")
    assert chat.leave() == 0


def test_history_a_pasted_text_and_colours_at_a_terminal(session, tuned_folder, tmp_path):
    """Two chats: what was pasted in the first is recalled in the second by the key Up."""
    pasted = "Name\na colour."
    options = ("--model", tuned_folder, "--temperature", "0", "--max-tokens", "3")
    chat = session(*options, TERM="xterm-256color")
    chat.expect(r"\x1b\[2m\(history is off.*\x1b\[0m\n.*\x1b\[1;36m> ")
    chat.type(f"\x1b[200~{pasted}\x1b[201~")
    chat.expect("a colour.")
    chat.type("\n")
    reply = chat.expect(r"tokens/s\)\x1b\[0m\n")
    assert reply.count("tokens") == 2  # one reply
    assert "\x1b[0m" in reply.split("(")[0]  # which has the terminal's own colour
    chat.expect("> ")
    chat.type("/tem\t0.5\n")
    chat.expect(r"\(temperature is 0.5\)")
    chat.expect("> ")
    chat.type("\x04")
    assert chat.leave() == 0
    history = tmp_path / "state" / "nanoeuler" / "chat-history.jsonl"
    assert list(map(json.loads, history.read_text().splitlines())) == [pasted, "/temperature 0.5"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    chat = session(*options, TERM="xterm-256color", NO_COLOR="1")
    shown = chat.expect(r"Ctrl-D leaves\)\n.*> ")
    chat.type("\x1b[A\x1b[A")
    shown += chat.expect("a colour.")
    chat.type("\n")
    shown += chat.expect(r"tokens/s\)\n")
    assert "\x1b[2m" not in shown
    assert "\x1b[1;36m" not in shown


def test_in_a_pipe_the_chat_is_plain(tuned_folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "nanoeuler", "chat", tuned_folder, "--temperature", "0"],
        input="Name a colour.\n",
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "NO_COLOR": ""},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    greeting, reply = done.stdout.splitlines()
    assert greeting.startswith("(history is off")
    assert reply == "blue"
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def endless_folder(base_folder, tokenizer, tokenizer_path, tmp_path):
    """The base model, its end token's logit always zero: there is always a likelier one."""
    saved = load_model(base_folder)
    model_weights(saved.config, saved.parameters).first_head[tokenizer.end_id] = 0
    save_model(
        tmp_path / "endless",
        SavedModel(saved.config, saved.parameters, tokenizer_path, "pretrain", None),
    )
    return tmp_path / "endless"


def test_in_a_narrow_terminal_lines_break_between_words(session, tuned_folder):
    chat = session("--model", tuned_folder, "--device", "reference", columns=40)
    head = chat.expect(r"Ctrl-D\s+leaves\)\n")
    chat.type("/help\n")
    shown = chat.expect("\nEach line of a pasted text is a message\nof its own")
    for text in (head, shown):
        lines = [line for line in text.splitlines() if str(tuned_folder) not in line]
        assert max(map(len, lines)) <= 40
    assert "/temperature X   0: always the likeliest\n" + 17 * " " + "token; 1:" in shown
    chat.type("/quit\n")
    assert chat.leave() == 0


def test_ctrl_c_at_a_terminal_stops_the_reply_alone(session, endless_folder):
    chat = session(
        "--model",
        endless_folder,
        "--max-tokens",
        "1000000",
        "--temperature",
        "0",
        "--device",
        "reference",
    )
    chat.expect(r"it continues the text that you type\)\n")
    chat.expect("> ")
    chat.type("Once upon a time\n")
    chat.expect(r"Once upon a time\n[^(]{40}")  # it is writing
    chat.type("\x03")
    chat.expect(r"\(stopped; an empty line goes on\)\n> ")
    chat.rest()
    chat.type("\x03")
    chat.expect(r"nothing to stop; Ctrl-D or /quit leaves\)\n> ")
    chat.type("/max-tokens 3\n")
    chat.expect(r"\(max-tokens is 3\)\n> ")
    chat.type("And then\n")
    chat.expect(r"cut off at 3 tokens.*\n> ")
    chat.type("/quit\n")
    assert chat.leave() == 0
