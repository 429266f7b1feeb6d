"""What makes a training run the same run: a hash of everything that can change its weights.

An equal fingerprint resumes (or, when finished, only exports again); another one starts afresh. Without it, a changed
learning rate would silently hand back the old weights.
"""

from typing import Any

from nanoeuler.config.settings import STAGE_SECTIONS
from nanoeuler.config.stages import STAGES, lasting
from nanoeuler.files import canonical_json, sha256_text

DURATION = {"tokens", "epochs"}
BY_CONTENT = {"init_from"}
"""Paths whose content is among the inputs."""


def fingerprint(stage: str, section: dict[str, Any], **inputs: Any) -> str:
    """Hash of what the schema says can change the result of the stage's section, of the stage's revision, and of `inputs` (JSON values).

    `inputs` are the model section, the seed, and hashes of data, tokenizer and parent. How long to train is left out for a
    WSD schedule, which can be made longer.
    """
    ignored = BY_CONTENT | (DURATION if section.get("schedule") == "wsd" else set())
    kept = {
        key: value
        for key, value in lasting(section, STAGE_SECTIONS[stage]).items()
        if key not in ignored
    }
    return sha256_text(
        canonical_json(
            {"stage": stage, "revision": STAGES[stage].revision, "section": kept, "inputs": inputs}
        )
    )
