"""What the tests of downloads have in common."""

import hashlib
from pathlib import Path

from nanoeuler.corpus.remote_file import Patience

QUICK = Patience(attempts=4, first_pause=0.01, silence=5.0)

IMPATIENT = Patience(attempts=4, first_pause=0.01, silence=0.5)

# 640,000 bytes
CONTENT = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(20_000))

SHA256 = hashlib.sha256(CONTENT).hexdigest()

PROGRAM = """
import sys
from pathlib import Path
from nanoeuler.corpus.download import *
download(SourceFile(sys.argv[1]), Path(sys.argv[2]), pause=float(sys.argv[3]))
"""


def hidden_files(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.glob(".*"))
