"""Build a large corpus in steps, of which two are many jobs: one for each group of web shards.

    data/corpora/<name>/groups/
        held-out/         1. hold_out: surveys of all documents, and what models are measured on
        compared-000.npz  2. compare, for each group: signatures, and quotations of 1
        chosen/           3. choose: which documents stay; books and own text are written here
        written-000/      4. write, for each group: its texts
    data/corpora/<name>   5. finish: the texts under their final names, and the manifest

The steps call what `assemble` calls, in the same order, and write the same bytes. Only step 1 reads
all sizes and hashes of the documents, only 2 and 4 read the texts of web pages, and 3 sorts what 2
has found on disk. The folder can be deleted when the manifest is there.
"""

import contextlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from nanoeuler.corpus.assemble import (
    SPLITS,
    describe,
    finish,
    require_corpus,
    write,
    write_manifest,
)
from nanoeuler.corpus.cleaning import NO_SIGNATURES, Cleaning, Examined, Findings, look_at
from nanoeuler.corpus.contamination import Measured
from nanoeuler.corpus.document_sources import Reader, WebPages
from nanoeuler.corpus.split import check_share
from nanoeuler.corpus.survey import Survey
from nanoeuler.errors import UserError
from nanoeuler.storage.files import (
    atomic_write,
    explain_os_errors,
    link_or_copy,
    read_json,
    write_json,
)
from nanoeuler.storage.folders import atomic_folder
from nanoeuler.storage.spilled import map_file, spill_folder
from nanoeuler.system.machine import check_threads


def steps_of(corpus: Path) -> Path:
    """The folder of what the steps hand to each other."""
    return corpus / "groups"


# ---- the steps


def hold_out(
    corpus: Path, sources: Sequence[Reader], share: float, cleaning: Cleaning, threads: int
) -> None:
    """Decide what is held out, and look at everything but the training pages of the web."""
    check_share(share)
    check_threads(threads)
    require_corpus(corpus)
    steps = steps_of(corpus)
    with spill_folder(steps) as spilled:
        found = look_at(sources, share, cleaning, threads, spilled)
        with atomic_folder(steps / "held-out") as folder:
            (folder / "measured").mkdir()
            found.measured.save(folder / "measured")
            for number, each in enumerate(found.surveys):
                if in_groups(each.source):
                    if each.parted or not each.source.groups():
                        raise UserError(
                            f"corpus source {each.source.name}: it has just one group; leave out "
                            "--step, which is for several"
                        )
                    for index, group in enumerate(each.groups()):
                        save(folder / f"group-{index:03d}.npz", survey_arrays(group))
                else:
                    save(folder / f"source-{number}.npz", survey_arrays(each))
                    examined = found.compare(number, each, threads)
                    save_examined(folder / f"examined-{number}.npz", examined)
                if (signed := found.signed[number]) is not None:
                    np.save(folder / f"signed-{number}.npy", signed)


def compare(corpus: Path, source: WebPages, group: int, mode: str, threads: int) -> None:
    """Compare the pages of a group, which `source` has, with what models are measured on."""
    check_threads(threads)
    held_out = steps_of(corpus) / "held-out"
    found = group_survey(held_out, source, group)
    measured = Measured.load(held_out / "measured")
    signed = [NO_SIGNATURES if mode == "near" else None]
    findings = Findings([found], signed, measured, [measured])
    examined = findings.compare(0, found, threads)
    save_examined(steps_of(corpus) / f"compared-{group:03d}.npz", examined)


def choose(corpus: Path, sources: Sequence[Reader], cleaning: Cleaning, threads: int) -> None:
    """Drop what repeats or quotes, in all sources, and write the texts that are in no group."""
    check_threads(threads)
    steps = steps_of(corpus)
    held_out = steps / "held-out"
    measured = Measured.load(held_out / "measured")
    surveys, signed = [], []
    examined: list[Iterable[Examined]] = []
    with spill_folder(steps) as spilled, atomic_folder(steps / "chosen") as folder:
        for number, source in enumerate(sources):
            if in_groups(source):
                surveys.append(united(source, held_out, spilled))
                examined.append(compared(steps, source))
            else:
                surveys.append(survey_of(source, load(held_out / f"source-{number}.npz")))
                examined.append(load_examined(held_out / f"examined-{number}.npz", 0))
            file = held_out / f"signed-{number}.npy"
            signed.append(np.load(file, mmap_mode="r") if file.exists() else None)
        found = Findings(surveys, signed, measured, [measured] * len(sources))
        told, ignored = found.decide(examined, cleaning.threshold, threads, spilled)
        for split in SPLITS:
            (folder / split).mkdir()
        chosen = {}
        for survey, counts in zip(found.surveys, told, strict=True):
            name, count, written = survey.source.name, 0, []
            if in_groups(survey.source):
                for group in survey.groups():
                    np.save(folder / f"group-{count:03d}.npy", group.fates)
                    count += 1
            else:
                written = [write(survey, name, folder / "train", folder / "validation", threads)]
            entry = describe(survey, counts)
            chosen[name] = {"entry": entry, "groups": count, "written": written}
        write_json(folder / "chosen.json", {"ignored": ignored, "sources": chosen})


def write_group(corpus: Path, source: WebPages, group: int, threads: int) -> None:
    """Write the texts of a group's pages, which `source` has."""
    check_threads(threads)
    steps = steps_of(corpus)
    found = group_survey(steps / "held-out", source, group)
    found.fates[:] = np.load(steps / "chosen" / f"group-{group:03d}.npy")
    with atomic_folder(steps / f"written-{group:03d}") as folder:
        for split in SPLITS:
            (folder / split).mkdir()
        stem = f"{source.name}-{group:03d}"
        written = write(found, stem, folder / "train", folder / "validation", threads)
        write_json(folder / "written.json", written)


def finish_corpus(corpus: Path, name: str, share: float, cleaning: Cleaning) -> dict[str, Any]:
    """Put the texts of all steps together, and return the manifest."""
    require_corpus(corpus)
    steps = steps_of(corpus)
    chosen = read_json(steps / "chosen/chosen.json")
    folders = [steps / "chosen"]
    entries = {}
    for source, told in chosen["sources"].items():
        of_groups = [steps / f"written-{number:03d}" for number in range(told["groups"])]
        written = told["written"] + [read_json(folder / "written.json") for folder in of_groups]
        entries[source] = finish(told["entry"], source, written)
        folders += of_groups
    with atomic_folder(corpus / SPLITS[0]) as train, atomic_folder(corpus / SPLITS[1]) as held_out:
        for split, target in zip(SPLITS, (train, held_out), strict=True):
            for file in (file for folder in folders for file in (folder / split).iterdir()):
                link_or_copy(file, target / file.name)
        (corpus / "manifest.json").unlink(missing_ok=True)
    return write_manifest(corpus, name, share, cleaning, chosen["ignored"], entries)


# ---- what they hand on


def in_groups(source: Reader) -> TypeGuard[WebPages]:
    """Whether a source is written in groups."""
    return isinstance(source, WebPages) and source.group is not None


def survey_arrays(found: Survey) -> dict[str, Any]:
    return {
        "fates": found.fates,
        "sizes": found.sizes,
        "counts": found.counts,
        "parted": found.parted,
        "stretches": found.stretches,
        "seen": found.source.seen,
    }


def survey_of(source: Reader, arrays: Mapping[str, np.ndarray]) -> Survey:
    source.seen = arrays["seen"]
    parted, stretches = bool(arrays["parted"]), arrays["stretches"]
    counts = arrays["counts"].tolist()
    return Survey(source, arrays["fates"], arrays["sizes"], counts, parted, stretches)


def group_survey(held_out: Path, source: Reader, group: int) -> Survey:
    return survey_of(source, load(held_out / f"group-{group:03d}.npz"))


def united(source: WebPages, held_out: Path, folder: Path) -> Survey:
    """The survey of all groups, whose arrays lie in `folder`."""
    counts: list[int] = []
    with open(folder / "fates", "wb") as fates, open(folder / "sizes", "wb") as sizes:
        for number, (group, _) in enumerate(source.groups()):
            found = group_survey(held_out, group, number)
            fates.write(found.fates.data)
            sizes.write(found.sizes.data)
            counts += found.counts
    columns = map_file(folder / "fates", np.uint8), map_file(folder / "sizes", np.int64)
    return Survey(source, *columns, counts, parted=False)


def compared(steps: Path, source: WebPages) -> Iterator[Examined]:
    """Yield what was found in each group, with the rows of the whole source."""
    first = 0
    for number, (_, documents) in enumerate(source.groups()):
        yield from load_examined(steps / f"compared-{number:03d}.npz", first)
        first += documents


def save_examined(path: Path, examined: Iterable[Examined]) -> None:
    """Write what was found as it comes: an .npz file holds the arrays of each batch."""
    with atomic_write(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for number, one in enumerate(examined):
            for name, array in zip(Examined._fields[1:], one[1:], strict=True):
                with archive.open(f"{number}-{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)


def load_examined(path: Path, first: int) -> Iterator[Examined]:
    """Yield what was found in each batch, with `first` added to the rows of documents."""
    with opened(path) as arrays:
        for number in range(len(arrays.files) // len(Examined._fields[1:])):
            columns = [arrays[f"{number}-{name}"] for name in Examined._fields[1:]]
            found = Examined(slice(0), *columns)
            yield found._replace(documents=found.documents + first)


def save(path: Path, arrays: Mapping[str, Any]) -> None:
    with atomic_write(path, "wb") as file:
        np.savez(file, **arrays)


def load(path: Path) -> dict[str, np.ndarray]:
    with opened(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open an .npz file. Raises `UserError` where an earlier step has not written it."""
    with explain_os_errors(path):
        try:
            arrays = np.load(path)
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such file; run the step that writes it first") from error
        with arrays:
            yield arrays
