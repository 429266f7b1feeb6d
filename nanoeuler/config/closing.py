"""What `make demo` ends with: where the report and the model are, and how to talk to it.

python -m nanoeuler.config.closing config/config.yaml
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler.config import load
from nanoeuler.config.paths import Paths


def closing_words(config: Mapping[str, Any]) -> str:
    """Lines for a terminal about a finished run: report, model, the command that chats, and prompts worth typing."""
    paths = Paths(config)
    model = paths.model_folder(paths.last_stage)
    lines = [
        f"report   {paths.report}",
        f"model    {model}",
        f"chat     {command()} chat --model {model}",
    ]
    for number, prompt in enumerate(config["evaluate"]["prompts"][:3]):
        lines.append(f"{'try' if number == 0 else '':8} {prompt}")
    return "\n".join(["", *lines])


def command() -> str:
    """`nanoeuler` as it must be typed here: with its folder, unless that is on the PATH."""
    if shutil.which("nanoeuler"):
        return "nanoeuler"
    script = Path(sys.executable).parent / "nanoeuler"
    return (
        os.path.relpath(script)
        if script.exists()
        else f"{os.path.relpath(sys.executable)} -m nanoeuler"
    )


if __name__ == "__main__":
    print(closing_words(load(sys.argv[1])))
