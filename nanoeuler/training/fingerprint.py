"""What makes a training run the same run: a hash of everything that can change its weights.

An equal fingerprint resumes (or, when finished, only exports again); another one starts afresh. Without it, a changed
learning rate would silently hand back the old weights.
"""

from typing import Any

from nanoeuler.files import canonical_json, sha256_text

REVISION = {"pretrain": 1, "sft": 1}
"""Raised when a stage's code changes what it computes, so that old checkpoints are not taken for new ones."""

WITHOUT_EFFECT = {"micro_batch_rows", "checkpoint_minutes", "log_every", "enabled", "instructions", "minimum_fit_share", "baseline_from_scratch"}
"""Keys of a stage's section that cannot change its weights, or (the data) are in the fingerprint by content."""

OBSERVATION = {"validate_every", "validation_tokens"}
"""Keys that change the result only where the best model is kept instead of the last."""

DURATION = {"tokens", "epochs"}


def fingerprint(stage: str, section: dict[str, Any], **inputs: Any) -> str:
    """Hash of the stage's section and of `inputs` (model section, seed, manifests' and parent's hashes: JSON values).

    How long to train is left out for a WSD schedule, which can be made longer.
    """
    ignored = set(WITHOUT_EFFECT)
    if section.get("keep") != "best":
        ignored |= OBSERVATION
    if section.get("schedule") == "wsd":
        ignored |= DURATION
    kept = {key: value for key, value in section.items() if key not in ignored}
    return sha256_text(canonical_json({"stage": stage, "revision": REVISION[stage], "section": kept, "inputs": inputs}))
