"""How much of the records and pairs the context will hold: known before hours of training.

    nanoeuler fit --config config/small.yaml --output results/small/fit.json \\
        --tokenizer data/corpora/books-and-web-100mb/tokenizer-512/tokenizer.json \\
        --instructions data/instructions/alpaca/manifest.json \\
        --preferences data/preferences/alpaca_farm/manifest.json

The stages look again, as they may be given other files.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanoeuler.config.stages import BY_SECTION, Stage, parent_of
from nanoeuler.errors import UserError
from nanoeuler.training.parents import UNTUNED_TEMPLATE, read_template
from nanoeuler.training.stages import module_of
from nanoeuler.training.stages.inputs import Inputs


def check_fit(
    config: Mapping[str, Any], tokenizer: Path, manifests: Mapping[str, Path]
) -> dict[str, dict[str, int]]:
    """Count what fits of the training records of these manifests, by kind; returned by stage.

    Raises `UserError` where less fits than `minimum_fit_share`.
    """
    counts = {}
    for section, stage in BY_SECTION.items():
        others = dict(manifests)
        manifest = others.pop(stage.records.kind, None) if stage.records else None
        if manifest:
            settings = stage.settings.read(config[section])
            inputs = Inputs(config, settings, manifest, tokenizer, others=others)
            counts[section] = asdict(module_of(stage).check_fit(inputs, template(stage, config)))
    return counts


def template(stage: Stage, config: Mapping[str, Any]) -> str:
    """The template of a stage, or that of the model that it will start from."""
    section = config[stage.section]
    if section.get("template"):
        return section["template"]
    if section.get("init_from"):
        try:
            return read_template(section["init_from"])
        except UserError:  # which the stage will say, if it is not there by then
            pass
    parent = parent_of(stage, config)
    return (parent and config[parent.section].get("template")) or UNTUNED_TEMPLATE
