"""tokenizer.json, and the two files of GPT-2's own vocabulary."""

import json
from pathlib import Path

from fuzz.campaigns.base import BrokenPromise, Campaign
from fuzz.mutation import Mutator, to_json
from nanoeuler.tokenizer import Tokenizer, gpt2_files

TEXT = "The fox sees the hen near the hill. </s> 1234 ñ \x00 \u4f60\u597d\n\n  the the the"


class Tokenizers(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.raw = (material / "data/tokenizer.json").read_bytes()
        self.content = json.loads(self.raw)
        ids = dict(self.content["model"]["vocab"])
        ids["<|endoftext|>"] = len(ids)
        self.names, self.merges = ids, self.content["model"]["merges"]

    def run(self, mutate: Mutator, folder: Path) -> None:
        if mutate.chance(0.25):
            merges = "#version: 0.2\n" + "\n".join(self.merges) + "\n"
            names = json.dumps(self.names)
            if mutate.chance(0.5):
                names = to_json(mutate.value(self.names))
            else:
                merges = mutate.text(merges)
            (folder / "encoder.json").write_text(names, encoding="utf-8")
            (folder / "vocab.bpe").write_bytes(merges.encode("utf-8", "surrogatepass"))
            tokenizer = Tokenizer(gpt2_files.read(folder))
        else:
            content = self.raw
            if mutate.chance(0.7):
                content = to_json(self.changed(mutate)).encode()
            if content is self.raw or mutate.chance(0.1):
                content = mutate.bytes(content)
            (folder / "tokenizer.json").write_bytes(content)
            tokenizer = Tokenizer.load(folder / "tokenizer.json")
        if mutate.chance(0.5):  # it takes a hundred times as long as reading
            ids = tokenizer.encode(TEXT)
            if tokenizer.decode(ids) != TEXT:
                raise BrokenPromise("an accepted tokenizer does not give back its text")
            tokenizer.save(folder / "saved.json")
            if Tokenizer.load(folder / "saved.json").fingerprint != tokenizer.fingerprint:
                raise BrokenPromise("a tokenizer is another one after it was saved and loaded")

    def changed(self, mutate: Mutator) -> object:
        """The content with changes, half of them outside the vocabulary, which is most of it."""
        if mutate.chance(0.5):
            return mutate.value(self.content)
        small = {key: value for key, value in self.content.items() if key != "model"}
        model = {k: v for k, v in self.content["model"].items() if k not in ("vocab", "merges")}
        changed = mutate.value(small | {"model": model})
        if isinstance(changed, dict) and isinstance(changed.get("model"), dict):
            for key in ("vocab", "merges"):
                changed["model"].setdefault(key, self.content["model"][key])
        return changed
