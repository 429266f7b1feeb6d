"""The algorithms of cuBLASLt that were chosen by timing, as a file in the user's cache folder.

Product → algorithm: its 64 bytes in hexadecimal.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_text, write_json
from nanoeuler.storage.integrity import SEAL, Origin, check_seal, seal

ALGORITHM = re.compile(r"[0-9a-f]{128}")


def read_algorithms(path: Path) -> dict[str, str]:
    """The algorithms chosen on this machine before; none without a file, or with a damaged one."""
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (UserError, OSError, ValueError, RecursionError) as error:
        return none_of(path, str(error))
    if not isinstance(content, dict):
        return none_of(path, "it is no JSON object")
    try:
        check_seal(path, content, Origin("an earlier run", "it is written again"))
        return check_algorithms({key: content[key] for key in content if key != SEAL}, path)
    except UserError as error:
        return none_of(path, str(error))


def none_of(path: Path, reason: str) -> dict[str, str]:
    log.line("timing", f"{path} cannot be used, products are timed again ({reason})")
    return {}


def check_algorithms(found: Mapping[str, Any], path: Path | str) -> dict[str, str]:
    """Algorithms that were read from `path`. Raises `UserError` for what is none."""
    for product, algorithm in found.items():
        if not isinstance(algorithm, str) or not ALGORITHM.fullmatch(algorithm):
            raise UserError(
                f"{path}: the algorithm of the product {product} is not 64 bytes in hexadecimal; "
                f"delete what holds it and run again"
            )
    return dict(found)


def write_algorithms(path: Path, algorithms: dict[str, str]) -> None:
    """Keep what was chosen. A folder that cannot be written to costs only the next run's time."""
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, seal(read_algorithms(path) | algorithms))
