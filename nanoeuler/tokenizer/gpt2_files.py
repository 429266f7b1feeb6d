"""Read GPT-2's vocabulary as it was released (Radford et al. 2019).

`encoder.json` has the ids by name, `vocab.bpe` a merge on each line: the same as the `vocab` and
`merges` of a tokenizer.json, whose checks they must pass. Hugging Face's folders have them as
`vocab.json` and `merges.txt`.
"""

from pathlib import Path

from nanoeuler.errors import UserError
from nanoeuler.storage.files import read_json, read_text
from nanoeuler.tokenizer.tokenizer_json import ADDED_TOKEN, DECODER, PRETOKENIZER, Reader
from nanoeuler.tokenizer.vocabulary import GPT2_END, Vocabulary

REMEDY = "fetch both files of GPT-2's vocabulary again"
RELEASED, HUGGING_FACE = ("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")
"""Names of the two files."""


def read(folder: str | Path, files: tuple[str, str] = RELEASED) -> Vocabulary:
    """Read the vocabulary in `folder`. Raises `UserError` when a file is missing or damaged."""
    names, pairs = (Path(folder) / name for name in files)
    for path in (names, pairs):
        if not path.is_file():
            raise UserError(
                f"{path}: no such file; give the folder that holds {' and '.join(files)}"
            )
    ids = read_json(names)
    if not isinstance(ids, dict) or GPT2_END not in ids:
        raise UserError(f"{names}: not GPT-2's {names.name} (it has no {GPT2_END!r}); {REMEDY}")
    try:
        lines = read_text(pairs).split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{pairs}: damaged: not UTF-8 ({error}); {REMEDY}") from error
    merges = [line for line in lines if line and not line.startswith("#version")]
    content = {
        "added_tokens": [ADDED_TOKEN | {"id": ids[GPT2_END], "content": GPT2_END}],
        "pre_tokenizer": PRETOKENIZER,
        "decoder": DECODER,
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
    }
    return Reader(pairs, REMEDY).vocabulary(content)
