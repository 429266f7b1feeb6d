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

from nanoeuler.config.settings import Dpo, Sft
from nanoeuler.errors import UserError
from nanoeuler.storage.record_folder import RecordFolder
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training import dpo, sft
from nanoeuler.training.pairs import encode_pairs
from nanoeuler.training.parents import UNTUNED_TEMPLATE, read_template
from nanoeuler.training.records import encode_records


def check_fit(
    config: Mapping[str, Any],
    tokenizer_path: Path,
    instructions: Path | None,
    preferences: Path | None,
) -> dict[str, dict[str, int]]:
    """Count what fits of the training records of these manifests, where given, by stage.

    Raises `UserError` where less fits than `minimum_fit_share`.
    """
    tokenizer, counts = Tokenizer.load(tokenizer_path), {}
    tuning, aligning = Sft.read(config["sft"]), Dpo.read(config["dpo"])
    records = RecordFolder(instructions, "instructions") if instructions else None
    pairs = RecordFolder(preferences, "preferences") if preferences else None
    if records:
        apart = pairs.held_out_prompts() if pairs else frozenset()
        context = tuning.context or config["model"]["context"]
        file = records.file("train")
        _, fit = encode_records(file, tokenizer, tuning.template, context, apart)
        sft.describe_fit(fit, tuning, context)
        counts["sft"] = asdict(fit)
    if pairs:
        apart = records.held_out_prompts() if records else frozenset()
        context = aligning.context or config["model"]["context"]
        template = template_of_parent(tuning, aligning)
        file = pairs.file("train")
        _, pair_fit = encode_pairs(file, tokenizer, template, context, apart)
        dpo.describe_fit(pair_fit, "dpo", aligning, context)
        counts["dpo"] = asdict(pair_fit)
    return counts


def template_of_parent(tuning: Sft, aligning: Dpo) -> str:
    """The template that the model will have been tuned with that alignment starts from."""
    if aligning.init_from:
        try:
            return read_template(aligning.init_from)
        except UserError:  # which the stage will say, if it is not there by then
            pass
    return tuning.template if tuning.enabled else UNTUNED_TEMPLATE
