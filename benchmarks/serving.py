"""A server under load: throughput, time to the first token and between tokens, by clients.

    python benchmarks/serving.py --preset small                         1, 8 and 64 clients
    python benchmarks/serving.py --preset base --prompt 400             prompts of 400 characters
    python benchmarks/serving.py --preset qwen3-0.6b --prompt 512 --tokens 128 --clients 64 128
    nanoeuler serve results/demo/sft &
    python benchmarks/serving.py --url http://127.0.0.1:8000
    python benchmarks/serving.py --url ours=http://127.0.0.1:8000 peer=http://127.0.0.1:8080
    python benchmarks/serving.py --clients 1 --tokens 4 --shared 1600 --url kept=… plain=…
    python benchmarks/serving.py --url http://127.0.0.1:8000 --soak 600 --model results/demo/sft

With `--preset` the server is ours, on a GPU where there is one, and the model has fresh weights and
reads bytes: a character is a token.
Any server of OpenAI's API can be measured, so that peers are measured by the same client. Each
client streams completions of a text one after the other, each with a seed of its own. Printed are
tokens and replies per second of all clients together, and the median and the 95th percentile of the
time to the first token and between two parts of a reply. A part is a token, or more where the
server or the client falls behind.

With `--soak`, 64 clients come, go and break off for that many seconds. Every reply that was not
broken off is compared with what `generate` writes; the server's memory is printed at each tenth.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from peers import spread
from shapes import SHAPES, model_of

from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.system import provenance
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

PROMPTS = ("The harbour", "A fox", "Where does Bea live?", "In the old mill, the people of the")


class Client:
    """A connection that streams completions."""

    def __init__(self, url: str, model: str):
        self.address, self.model = urlsplit(url), model
        self.connection = http.client.HTTPConnection(self.address.netloc, timeout=300)

    def stream(self, **fields: object):
        """The events of a completion, as (seconds since the request, event)."""
        body = json.dumps({"model": self.model, "stream": True, **fields})
        began = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self.connection.request("POST", "/v1/completions", body, headers)
        response = self.connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
        while line := response.readline():
            if line.startswith(b"data: {"):
                yield time.perf_counter() - began, json.loads(line[6:])
        # the connection can be used again once the reply is read to its end


@contextlib.contextmanager
def fresh_server(shape: str) -> Iterator[str]:
    """The address of a server of our own, with a model of fresh weights that knows bytes only."""
    config = model_of(shape)
    with tempfile.TemporaryDirectory() as name:
        tokenizer, folder = Path(name, "tokenizer.json"), Path(name, shape)
        Tokenizer(build([])).save(tokenizer)
        weights = initial_parameters(config, 1)
        save_model(folder, SavedModel(config, weights, tokenizer, "pretrain", None))
        command = [sys.executable, "-m", "nanoeuler", "serve", str(folder), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                for line in server.stderr:
                    if found := re.search(r"(http://\S+)/v1", line):
                        yield found[1]
                        break
            finally:
                server.terminate()


class Timed(NamedTuple):
    """What some clients saw: tokens, and seconds to first parts (one a reply) and between parts."""

    tokens: int
    first: list[float]
    between: list[float]


class Work(NamedTuple):
    """What clients ask for."""

    tokens: int
    """Of each reply, at most."""
    characters: int | None = None
    """Of each prompt; None: those of `PROMPTS`, which are short."""
    shared: int = 0
    """Characters in front of all prompts."""

    def prompt(self, seed: int) -> str:
        begin = (PROMPTS[-1] * self.shared)[: self.shared] + PROMPTS[seed % len(PROMPTS)]
        if self.characters is None:
            return begin
        return f"{begin} {seed} {PROMPTS[-1] * self.characters}"[: self.characters]


class LoadClient:
    """A client that asks for one completion after the other; it parses no more than it must."""

    def __init__(self, url: str, model: str, number: int, clients: int, work: Work):
        self.address, self.model, self.work = urlsplit(url), model, work
        self.seed, self.clients = number, clients
        self.seen = Timed(0, [], [])
        self.keeps = False
        """Whether the server lets a connection serve another request."""

    def ask(self) -> socket.socket:
        """Ask for the next reply. Returns the socket that it comes from."""
        self.seed += self.clients
        if not self.keeps:
            place = self.address.hostname, self.address.port
            self.socket = socket.create_connection(place, timeout=300)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = {
            "model": self.model,
            "stream": True,
            "prompt": self.work.prompt(self.seed),
            "seed": self.seed,
            "max_tokens": self.work.tokens,
            "temperature": 0.7,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(fields).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.received, self.last, self.is_first = b"", time.perf_counter(), True
        self.socket.sendall(head.encode() + body)
        return self.socket

    def read(self) -> bool:
        """Take what has arrived. Returns whether to ask for another reply."""
        data, now = self.socket.recv(1 << 20), time.perf_counter()
        if not data and not self.received:  # the last reply was the last of this connection
            self.keeps = False
            return True
        if not data:
            raise RuntimeError(f"the server closed the connection behind {self.received[-300:]!r}")
        if not self.received:
            self.keeps = b"\r\nconnection: close\r\n" not in data.lower()
        self.received = self.received[-1000:] + data
        if b"data: {" in data:
            (self.seen.first if self.is_first else self.seen.between).append(now - self.last)
            self.last, self.is_first = now, False
        if b"data: [DONE]" not in self.received or not self.received.endswith(b"0\r\n\r\n"):
            return False
        (*_, usage) = re.finditer(rb'"completion_tokens": ?(\d+)', self.received)
        self.seen = self.seen._replace(tokens=self.seen.tokens + int(usage[1]))
        if not self.keeps:
            self.socket.close()
        return True


def drive(url: str, model: str, numbers: range, clients: int, stop: float, work: Work) -> Timed:
    """Let some of the clients ask until `stop`, by `time.time`, and finish their last replies."""
    selector = selectors.DefaultSelector()
    every = [LoadClient(url, model, number, clients, work) for number in numbers]
    for client in every:
        selector.register(client.ask(), selectors.EVENT_READ, client)
    while selector.get_map():
        for key, _ in selector.select():
            client = key.data
            if client.read():
                selector.unregister(key.fileobj)
                if time.time() < stop:
                    selector.register(client.ask(), selectors.EVENT_READ, client)
    firsts, betweens = ([x for client in every for x in client.seen[i]] for i in (1, 2))
    return Timed(sum(client.seen.tokens for client in every), firsts, betweens)


def measure(url: str, model: str, clients: int, seconds: float, work: Work) -> list[float]:
    """Tokens and replies per second; milliseconds to the first part (median, 95th percentile), and
    between two.

    The clients share a few processes: one could not keep up.
    """
    processes = min(clients, max(1, len(os.sched_getaffinity(0)) // 4))
    numbers = [range(first, clients, processes) for first in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(abs, range(processes)))  # start them
        began = time.time()
        given = clients, began + seconds, work
        parts = [pool.submit(drive, url, model, each, *given) for each in numbers]
        seen = [part.result() for part in parts]
        took = time.time() - began
    firsts, betweens = ([x for each in seen for x in each[i]] for i in (1, 2))
    times = [1000 * np.percentile(each, share) for each in (firsts, betweens) for share in (50, 95)]
    return [sum(each.tokens for each in seen) / took, len(firsts) / took, *times]


def compare(urls: dict[str, str], models: dict[str, str], options: argparse.Namespace) -> None:
    """Print a table: the median of the rounds, in which the servers take turns.

    The ratio is that of the first server's throughput to the others', round by round.
    """
    print(
        "| clients | server | tokens/s | replies/s | first ms p50 | p95 | between ms p50 | p95 "
        "| ratio |\n|---|---|---|---|---|---|---|---|---|"
    )
    for clients in options.clients:
        seen: dict[str, list[list[float]]] = {name: [] for name in urls}
        for _ in range(options.rounds):
            for name, url in urls.items():
                given = clients, options.seconds, options.work
                seen[name].append(measure(url, models[name], *given))
        (first, *_) = rates = {name: np.array(rows)[:, 0] for name, rows in seen.items()}
        for name, rows in seen.items():
            times = " | ".join(f"{value:.2f}" for value in np.median(rows, axis=0)[1:])
            ratio = spread(rates[first] / rates[name], ".2f") if name != first else ""
            shown = f"{spread(rates[name], ',.0f')} | {times} | {ratio}"
            print(f"| {clients} | {name} | {shown} |", flush=True)


def soak(url: str, name: str, folder: Path, seconds: float, tokens: int) -> bool:
    """64 clients that come, go and break off. Returns whether every reply was right."""
    import nanoeuler

    model = nanoeuler.load(folder, device="cpu")
    expected: dict[tuple[str, int], str] = {}
    for prompt in PROMPTS:
        for seed in range(8):
            fields = {"temperature": 1.0, "top_p": 1.0, "seed": seed, "max_tokens": tokens}
            expected[prompt, seed] = model.generate(prompt, raw=True, **fields)
    stop = time.perf_counter() + seconds
    wrong: list[str] = []
    counts = {"whole": 0, "broken off": 0, "refused": 0, "failed": 0}
    lock = threading.Lock()

    def ask(chance: random.Random) -> str:
        client = Client(url, name)
        prompt, seed = chance.choice(PROMPTS), chance.randrange(8)
        leaves = chance.randrange(1, 30) if chance.random() < 0.3 else None
        text = ""
        fields = {"prompt": prompt, "seed": seed, "max_tokens": tokens, "temperature": 1.0}
        for number, (_, event) in enumerate(client.stream(**fields)):
            if number == leaves:
                client.connection.close()
                return "broken off"
            text += "".join(choice["text"] for choice in event["choices"])
        if text != expected[prompt, seed]:
            wrong.append(f"{prompt!r} with seed {seed}: {text!r}")
        client.connection.close()
        return "whole"

    def work(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() < stop:
            try:
                end = ask(chance)
            except RuntimeError:
                end = "refused"
            except OSError:
                end = "failed"
            with lock:
                counts[end] += 1
            time.sleep(chance.random() * 0.05)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for tenth in range(1, 11):
        time.sleep(max(0.0, stop - seconds * (1 - tenth / 10) - time.perf_counter()))
        print(f"  {tenth * 10} %: {counts}, memory {server_memory(url):.1f} MB", flush=True)
    for thread in threads:
        thread.join()
    for line in wrong[:5]:
        print("wrong:", line)
    print(f"{sum(counts.values())} requests, {len(wrong)} wrong replies")
    return not wrong


def server_memory(url: str) -> float:
    """Resident megabytes of the process that listens on the port of `url`, and of its children."""
    port = f":{urlsplit(url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    sockets = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(file.readlink()) in sockets for file in (process / "fd").iterdir()):
                if "serve" not in (process / "cmdline").read_text():
                    continue
                children = process / "task" / process.name / "children"
                family = [process, *map(Path("/proc").joinpath, children.read_text().split())]
                texts = [(each / "status").read_text() for each in family]
                return sum(int(text.split("VmRSS:")[1].split()[0]) for text in texts) / 1024
        except OSError:
            continue
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url",
        nargs="+",
        default=["http://127.0.0.1:8000"],
        metavar="[NAME=]URL",
        help="servers, which take turns; each is asked for the first model that it has",
    )
    parser.add_argument("--rounds", type=int, default=1, help="for each number of clients")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=100, help="of each reply, at most")
    parser.add_argument("--prompt", type=int, metavar="CHARACTERS", help="of each prompt")
    parser.add_argument(
        "--shared", type=int, default=0, metavar="CHARACTERS", help="in front of all prompts"
    )
    parser.add_argument("--soak", type=float, metavar="SECONDS")
    parser.add_argument("--model", type=Path, help="the served model's folder, for --soak")
    parser.add_argument(
        "--preset", choices=SHAPES, help="measure a server of our own with a model of that size"
    )
    options = parser.parse_args()
    options.work = Work(options.tokens, options.prompt, options.shared)
    print(provenance.cpu_name())
    with contextlib.ExitStack() as stack:
        urls = dict(each.split("=") if "=" in each else (each, each) for each in options.url)
        if options.preset:
            urls = {"nanoeuler": stack.enter_context(fresh_server(options.preset))}
        run(urls, options)


def run(urls: dict[str, str], options: argparse.Namespace) -> None:
    models = {name: first_model(url) for name, url in urls.items()}
    if options.soak:
        ((name, url),) = urls.items()
        right = soak(url, models[name], options.model, options.soak, options.tokens)
        sys.exit(not right)
    for name, url in urls.items():
        measure(url, models[name], 1, 2, options.work)  # warm
    compare(urls, models, options)


def first_model(url: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/v1/models")
    return json.loads(connection.getresponse().read())["data"][0]["id"]


if __name__ == "__main__":
    main()
