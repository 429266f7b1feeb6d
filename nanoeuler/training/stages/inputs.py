"""Inputs of every stage of training, and what all stages of tuning make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Training, Tuning
from nanoeuler.config.stages import Stage
from nanoeuler.errors import UserError
from nanoeuler.model.adapters import adapted
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.spec import trained_part
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.distributed.group import Group
from nanoeuler.training.job import Job
from nanoeuler.training.parents import Parent, check_tokenizer, read_parent
from nanoeuler.training.schedule import Schedule

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

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

    @classmethod
    def of_run(
        cls, config: Mapping[str, Any], stage: Stage, settings: Any, **given: Any
    ) -> "Inputs[Any]":
        """With the data and the tokenizer of a run; `given` are further fields. Raises `UserError`
        where they are not there."""
        paths = Paths(config)
        data, *others = ((kind, Path(path)) for kind, path in paths.material(stage).items())
        for path in (data[1], Path(paths.tokenizer)):
            if not path.is_file():
                raise UserError(
                    f"{path}: no such file, of which {paths.results} was made; go to the folder "
                    "where that was started, or bring it back"
                )
        return cls(config, settings, data[1], Path(paths.tokenizer), others=dict(others), **given)

    @property
    def context(self: "Inputs[Tuning]") -> int:
        """Tokens of a row of a stage of tuning."""
        return self.settings.context or ModelConfig.from_dict(self.config["model"]).context

    def apart(self) -> tuple[frozenset[str], dict[str, str]]:
        """The keys of the prompts that the others hold out, and the hashes of their records."""
        folders = {kind: RecordFolder(path, kind) for kind, path in self.others.items()}
        prompts = [folder.held_out_prompts() for folder in folders.values()]
        hashes = {kind: folder.check("validation") for kind, folder in folders.items()}
        return frozenset().union(*prompts), hashes


class Start:
    """What a stage of tuning starts with.

    That is the `model`, with its context and adapters; the `tokenizer`; the `parent`, if there is
    one; the `base` that adapters are trained on; the `files` of records, for training and held out;
    and the prompts to keep `apart`.
    """

    def __init__(
        self, stage: Stage, inputs: Inputs[Tuning], backend: "Backend", group: Group
    ) -> None:
        """Raises `UserError` where the inputs do not fit together, or are damaged."""
        assert stage.records is not None
        self.stage, self.kind = stage.section, stage.records.kind
        self.inputs, self.backend, self.group = inputs, backend, group
        self.seed: int = inputs.config["seed"]
        model = replace(ModelConfig.from_dict(inputs.config["model"]), context=inputs.context)
        self.model = adapted(model, inputs.settings.lora)
        self.tokenizer = Tokenizer.load(inputs.tokenizer)
        self.parent: Parent | None = None
        if inputs.parent is not None:
            self.parent = read_parent(inputs.parent, self.model, self.tokenizer, inputs.tokenizer)
        started = self.parent is not None
        check_tokenizer(self.tokenizer, inputs.tokenizer, self.model, started=started)
        self.folder = RecordFolder(inputs.data, self.kind)
        self.files = [self.folder.file(part) for part in ("train", "validation")]
        self.apart, self.others = inputs.apart()
        self.base = self.parent.base(self.model, backend) if self.parent else None
        if self.model.lora is not None and self.parent is None:
            parameters = initial_parameters(replace(self.model, lora=None), self.seed)
            self.base = Frozen(self.model, parameters, backend)

    def initial(self) -> np.ndarray:
        """What is trained, at its start. Without a parent it is random."""
        if self.parent:
            return self.parent.start(self.model, self.seed)
        return initial_parameters(self.model, self.seed)[trained_part(self.model)]

    def hashes(self, *, calculator: bool, **more: Any) -> dict[str, Any]:
        """What decides the weights, besides the settings and the seed."""
        return {
            "model": self.model.to_dict(),
            "parent": self.parent.fingerprint if self.parent else None,
            self.kind: [self.folder.check(part) for part in ("train", "validation")],
            **self.others,
            "tokenizer": self.tokenizer.fingerprint,
            **({"calculator": True} if calculator else {}),
            **more,
        }

    def job(self, settings: Tuning, hashes: Mapping[str, Any], steps: int, **own: Any) -> Job:
        """The job of the stage, whose `own` fields are given."""
        licences = {key: self.folder.manifest.get(key) for key in ("name", "licence")}
        return Job(
            stage=self.stage,
            output=self.inputs.output,
            config=self.model,
            settings=settings,
            inputs={"seed": self.seed, **hashes},
            schedule=Schedule.of(settings, steps),
            backend=self.backend,
            group=self.group,
            initial=self.initial,
            tokenizer_path=self.inputs.tokenizer,
            parent=self.inputs.parent,
            base=self.base,
            tuned=self.parent is not None,
            patience=settings.patience,
            info={
                **(self.parent.inherited if self.parent else {}),
                self.kind: licences,
                "parent": self.parent.fingerprint if self.parent else None,
            },
            **own,
        )
