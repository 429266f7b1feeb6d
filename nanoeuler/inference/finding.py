"""The model that a folder stands for."""

from pathlib import Path

from nanoeuler.config.stages import BY_NAME, is_baseline
from nanoeuler.model.files import CONFIG, previous
from nanoeuler.shipped import find


def find_model(folder: Path) -> Path:
    """The model folder that `folder` stands for: itself, that of a stage, a run's last one, or a
    shipped one such as models/stories.

    Its model may be the one that is kept while the next is made: see `usable`.
    """
    stages = [f"{stage}/model" for stage in reversed(BY_NAME) if not is_baseline(stage)]
    for model in (folder / each for each in ("", "model", *stages)):
        if any((place / CONFIG).is_file() for place in (model, previous(model))):
            return model
    return find(folder)
