"""The stage `export`: a model folder as files of another program, or as a smaller one."""

from dataclasses import replace
from pathlib import Path

from nanoeuler.errors import UserError
from nanoeuler.interchange.plain_model import DTYPES
from nanoeuler.model.files import load_model, save_model

FORMATS = {"hf": [*DTYPES], "gguf": [*DTYPES, "q8_0", "q4_0"], "nanoeuler": ["f32", "bf16"]}
"""Format → the types that its weights can have."""


def require_new(folder: Path) -> None:
    """Raise `UserError` where something is already."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UserError(f"{folder}: holds files already; give the name of a new folder")
    elif folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: a file; give the name of a new folder")


def export(model: Path, format: str, dtype: str, output: Path) -> None:
    """Write the model in the folder `model` to the new folder `output`."""
    if dtype not in FORMATS[format]:
        raise UserError(
            f"--dtype is {dtype}, which the format {format} does not have; "
            f"it has {', '.join(FORMATS[format])}"
        )
    require_new(output)
    saved = load_model(model)
    if format == "hf":
        from nanoeuler.interchange.hugging_face import run_matter, write_folder

        write_folder(output, saved, dtype, run_matter(model))
    elif format == "nanoeuler":
        save_model(output, replace(saved, quantized=None), dtype)
    else:
        from nanoeuler.interchange.gguf_file import write_gguf

        write_gguf(output, saved, dtype)
