"""A hash of everything that can change a stage's weights.

A run with the fingerprint of a checkpoint resumes from it, or only exports its model again when it
was finished. Another fingerprint starts afresh. Without it, a run with a new learning rate would
silently return the old weights.
"""

from dataclasses import asdict
from typing import Any

from nanoeuler.config.rules import lasting
from nanoeuler.config.settings import Training
from nanoeuler.config.stages import BY_SECTION
from nanoeuler.storage.files import canonical_json, sha256_text

DURATION = {"tokens", "epochs"}
BY_CONTENT = {"init_from", "old_tokens"}
"""Keys that name a folder or file; a hash of its content is among the inputs."""


def fingerprint(stage: str, settings: Training, **inputs: Any) -> str:
    """Hash the settings that can change the result, the stage's revision, and `inputs`.

    `inputs` (JSON values) are the model section, the seed, and hashes of data, tokenizer and
    parent. The duration is left out for a WSD schedule, since such a run can be made longer.
    """
    ignored = BY_CONTENT | (DURATION if settings.schedule == "wsd" else set())
    kept = lasting(asdict(settings), type(settings))
    content = {
        "stage": stage,
        "revision": BY_SECTION[stage].revision,
        "section": {key: value for key, value in kept.items() if key not in ignored},
        "inputs": inputs,
    }
    return sha256_text(canonical_json(content))
