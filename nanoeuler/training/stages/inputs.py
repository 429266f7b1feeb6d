"""Inputs of every stage of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from nanoeuler.config.settings import Training, Tuning
from nanoeuler.model.adapters import adapted
from nanoeuler.model.config import ModelConfig
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.parents import Parent, check_tokenizer, read_parent

Settings = TypeVar("Settings", bound=Training, covariant=True)


@dataclass(frozen=True)
class Inputs(Generic[Settings]):
    """Settings of a stage, the files that it reads, and where it writes."""

    config: Mapping[str, Any]
    """The configuration, of which the stage reads the model and the seed, too."""
    settings: Settings
    """Its own section."""
    data: Path
    """Manifest of the tokens or the records that it learns from."""
    tokenizer: Path
    output: Path = Path()
    """Folder of the stage: results/<run>/<stage>."""
    parent: Path | None = None
    """Folder of the model that it starts from."""
    others: Mapping[str, Path] = field(default_factory=dict)
    """Manifests of other records, by their kinds: prompts that they hold out are not learned."""
    without: Sequence[tuple[int, int]] = ()
    """Documents that pretraining leaves out, as first token and end in the text for training."""

    @property
    def context(self: "Inputs[Tuning]") -> int:
        """Tokens of a row of a stage of tuning."""
        return self.settings.context or ModelConfig.from_dict(self.config["model"]).context

    def start(self: "Inputs[Tuning]") -> tuple[ModelConfig, Tokenizer, Parent | None]:
        """The model of a stage of tuning, with its context and adapters; its tokenizer; and the
        parent, if it has one. Raises `UserError` where these do not fit together."""
        model = replace(ModelConfig.from_dict(self.config["model"]), context=self.context)
        model = adapted(model, self.settings.lora)
        tokenizer, parent = Tokenizer.load(self.tokenizer), None
        if self.parent is not None:
            parent = read_parent(self.parent, model, tokenizer, self.tokenizer)
        check_tokenizer(tokenizer, self.tokenizer, model, started=parent is not None)
        return model, tokenizer, parent

    def apart(self) -> tuple[frozenset[str], dict[str, str]]:
        """The keys of the prompts that the others hold out, and the hashes of their records."""
        folders = {kind: RecordFolder(path, kind) for kind, path in self.others.items()}
        prompts = [folder.held_out_prompts() for folder in folders.values()]
        hashes = {kind: folder.check("validation") for kind, folder in folders.items()}
        return frozenset().union(*prompts), hashes
