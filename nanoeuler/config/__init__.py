"""The configuration: reading and checking it, what each stage reads of it, and where files lie.

`load` gives the resolved configuration that everything else takes; `Paths` names every file; `stage_config` and
`stage_identity` are the parts that a stage is handed and that decide whether it runs again.
"""

from nanoeuler.config.loading import load, load_files
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import stage_config, stage_identity

__all__ = ["Paths", "load", "load_files", "stage_config", "stage_identity"]
