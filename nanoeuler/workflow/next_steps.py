"""The last lines of `make demo`: where the report and the model are, and how to chat with it.

python -m nanoeuler.workflow.next_steps config/config.yaml
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.corpus.sources.own_text import warning_for
from nanoeuler.log import printable
from nanoeuler.storage.files import read_json


def next_steps(config: Mapping[str, Any]) -> str:
    """Lines about a finished run: report, model, the command that chats, and prompts to try."""
    paths = Paths(config)
    model = paths.model_folder(paths.last_stage)
    lines = [
        f"report   {paths.report}",
        f"model    {model}",
        f"chat     {command()} chat {model}",
    ]
    for number, prompt in enumerate(config["evaluate"]["prompts"][:3]):
        lines.append(f"{'try' if number == 0 else '':8} {prompt}")
    manifest = Path(paths.corpus_manifest)
    sources = read_json(manifest)["sources"] if manifest.is_file() else {}
    if little := warning_for(sources, config["pretrain"]["init_from"]):
        lines += ["", *textwrap.wrap(little, 100)]
    return printable("\n".join(["", *lines]))


def command() -> str:
    """The command `nanoeuler` as it must be typed here: with its folder unless that is on PATH."""
    if shutil.which("nanoeuler"):
        return "nanoeuler"
    script = Path(sys.executable).parent / "nanoeuler"
    if script.exists():
        return os.path.relpath(script)
    return f"{os.path.relpath(sys.executable)} -m nanoeuler"


if __name__ == "__main__":
    print(next_steps(load(sys.argv[1])))
