"""A hash of everything that can change a stage's weights.

A run with the fingerprint of a checkpoint resumes from it, or only exports its model again when it
was finished. Another fingerprint starts afresh. Without it, a run with a new learning rate would
silently return the old weights.
"""

from collections.abc import Mapping
from typing import Any

from nanoeuler.config.settings import STAGE_SECTIONS
from nanoeuler.config.stages import STAGES, lasting
from nanoeuler.storage.files import canonical_json, sha256_text

DURATION = {"tokens", "epochs"}
BY_CONTENT = {"init_from", "old_tokens"}
"""Keys that name a folder or file; a hash of its content is among the inputs."""


def fingerprint(stage: str, section: Mapping[str, Any], **inputs: Any) -> str:
    """Hash the settings that can change the result, the stage's revision, and `inputs`.

    `section` holds the settings as they were given: `Section.read` would add defaults, and a
    checkpoint written before a key existed would not be found. `inputs` (JSON values) are the model
    section, the seed, and hashes of data, tokenizer and parent. The duration is left out for a WSD
    schedule, since such a run can be made longer.
    """
    return hash_settings(stage, lasting(section, STAGE_SECTIONS[stage]), inputs)


def earlier_fingerprint(stage: str, section: Mapping[str, Any], **inputs: Any) -> str:
    """The fingerprint that earlier code gave the same settings.

    It hashed `minimum_fit_share` as it was given, and `validate_every` for `keep: best` only.
    """
    kept = lasting(section, STAGE_SECTIONS[stage])
    if "minimum_fit_share" in kept:
        kept["minimum_fit_share"] = section["minimum_fit_share"]
    if section.get("keep") != "best":
        kept.pop("validate_every", None)
    return hash_settings(stage, kept, inputs)


def hash_settings(stage: str, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    ignored = BY_CONTENT | (DURATION if settings.get("schedule") == "wsd" else set())
    kept = {key: value for key, value in settings.items() if key not in ignored}
    content = {
        "stage": stage,
        "revision": STAGES[stage].revision,
        "section": kept,
        "inputs": dict(inputs),
    }
    return sha256_text(canonical_json(content))
