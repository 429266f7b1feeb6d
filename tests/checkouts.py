"""Copies of this checkout, for tests that run its commands as a user would."""

import shutil
import subprocess
from pathlib import Path

from tests.machine_code import copy_machine_code

ROOT = Path(__file__).resolve().parents[1]


def copy_checkout(folder: Path) -> Path:
    """Copy the files that git tracks or would track, and the machine code of this checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    copy_machine_code(folder)
    return folder
