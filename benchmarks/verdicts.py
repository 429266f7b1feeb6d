"""False verdicts of A/A experiments: a tiny model on a CPU, both arms trained alike by other seeds.

    python benchmarks/verdicts.py data/lessons/corpora/lessons/tokens-512/manifest.json

The tokens are those of `nanoeuler experiment config/lessons.yaml`. No trial belongs to two
experiments. Prints a line for each experiment with a verdict, and last the rate of false ones. A
thousand trials take some minutes.
"""

import argparse
from pathlib import Path

from nanoeuler.backend import make_backend
from nanoeuler.experiments.verdicts import judge
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

MODEL = {"dim": 32, "heads": 2, "kv_heads": 1, "layers": 1, "ffn": 64, "context": 32}
STEPS, ROWS, LEARNING_RATE = 60, 8, 1e-2
HELD_OUT = 2_000  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--level", type=float, default=0.01)
    options = parser.parse_args()
    store = TokenStore.open(options.tokens)
    vocabulary = options.tokens.parent.name.replace("tokens-", "tokenizer-")
    tokenizer = Tokenizer.load(options.tokens.parents[1] / vocabulary / "tokenizer.json")
    backend = make_backend("cpu")
    model = ModelConfig.from_dict(MODEL | {"vocab_size": tokenizer.vocab_size, "mtp_heads": 1})
    text, source = store.tokens("train"), store.sources("validation")[0]
    held_out, size = store.tokens("validation", source), store.bytes("validation", source)

    def trial(seed: int) -> float:
        """Bits per byte of a model that was trained with this seed."""
        length = model.context
        stream = TextStream(
            text, length, ROWS * length, model.mtp_weights, tokenizer.end_id, True, seed, "trial"
        )
        state = TrainingState(model, backend, initial_parameters(model, seed), AdamW())
        state.stage(stream.rows(0).padded(ROWS))
        for step in range(STEPS):
            state.start(ROWS, LEARNING_RATE * (1 - step / STEPS))
            state.stage(stream.rows(step + 1).padded(ROWS))
            state.finish()
        return bits_per_byte(
            state.model, held_out, size, tokenizer, document_mask=True, limit_tokens=HELD_OUT
        ).bits_per_byte

    found = []
    for number in range(options.experiments):
        first = 2 * number * options.seeds
        scores = [trial(seed) for seed in range(first, first + 2 * options.seeds)]
        differences = [own - base for own, base in zip(scores[::2], scores[1::2], strict=True)]
        verdict = judge(differences, options.seeds, options.level)
        found.append(verdict.verdict)
        if verdict.verdict != "undecided":
            print(f"experiment {number}: {verdict}", flush=True)
    false = {kind: found.count(kind) for kind in ("better", "worse")}
    print(f"{len(found)} experiments of {options.seeds} seeds at level {options.level}: {false}")


if __name__ == "__main__":
    main()
