"""`nanoeuler trace` of a tiny run, beside a search byte by byte and a replay of its batches."""

import json
import shutil
from pathlib import Path

import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.config import RESOLVED, read_resolved, write_resolved
from nanoeuler.config.stages import BY_NAME
from nanoeuler.errors import UserError
from nanoeuler.storage.integrity import SEAL, seal
from nanoeuler.tracing.trace import HELD_OUT, TRAINED, Tracer
from nanoeuler.training.stages import module_of
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.streams import TextStream
from tests.tracing.conftest import HELD_BACK, PREFERRED, SECRET, TAUGHT


@pytest.fixture(scope="module")
def tracer(run):
    return Tracer(run.model("dpo"))


def replay(run, name, span):
    """The epochs and steps of a stage whose rows have tokens of `span`: all batches are looked
    through."""
    stage, config = BY_NAME[name], read_resolved(Path(run.paths.configuration))
    material = [Path(path) for path in run.paths.material(stage).values()]
    own = stage.records.kind if stage.records else None
    others = {k: Path(path) for k, path in run.paths.learned_records.items() if k != own}
    settings = stage.settings.read(config[stage.section])
    parent = run.paths.parent(stage).get("parent")
    given = material[0], Path(run.paths.tokenizer), Path(), Path(parent) if parent else None, others
    job = module_of(stage).job(Inputs(config, settings, *given), ReferenceBackend())
    wanted = rows_with(span.tolist(), job.stream)
    found = set()
    for step in range(job.schedule.total_steps):
        for slot, row in enumerate(job.stream.rows(step).ids.tolist()):
            if row in wanted:
                visit = step * job.stream.rows_per_step + slot
                found.add((visit // job.stream.row_count + 1, step + 1))
    return sorted(found, key=lambda reading: reading[::-1])


def rows_with(span, stream):
    """The rows of an epoch that have some of the tokens of each place of `span`, as lists."""
    if not isinstance(stream, TextStream):  # a record is in one row
        epoch = range(-(-stream.row_count // stream.rows_per_step))
        rows = [row for step in epoch for row in stream.rows(step).ids.tolist()]
        return [row for row in rows if places(row, span)]
    text = stream.sequence[0 : len(stream.sequence)].tolist()
    tokens = {first + offset for first in places(text, span) for offset in range(len(span))}
    starts = range(0, len(text) - stream.length, stream.length)
    rows = {first: text[first : first + stream.length] for first in starts}
    found = [rows[first] for first in rows if tokens & {*range(first, first + stream.length)}]
    assert all([*rows.values()].count(row) == 1 for row in found)  # each is known by its tokens
    return found


def places(tokens, span):
    return [at for at in range(len(tokens)) if tokens[at : at + len(span)] == span]


def steps(document):
    return [(reading["epoch"], reading["step"]) for reading in document["readings"]]


def test_a_sentence_is_traced_to_its_document_and_to_the_steps_that_a_replay_finds(run, tracer):
    found = tracer.trace(f"I heard that {SECRET} in town.", least=20, most=10, documents=3)
    (span,) = found["spans"]
    assert span["text"].strip().startswith(SECRET)
    assert span["times"] == {TRAINED: 1, HELD_OUT: 0, "instructions": 0, "preferences": 0}
    (document,) = span["documents"]
    assert document["address"] == str(run.folder / "texts" / "11.txt")
    assert document["licence"] == "own text"
    ids = tracer.tokenizer.encode(span["text"], continues=True)
    assert len(ids) == span["tokens"]
    expected = replay(run, "pretrain", ids)
    assert len({epoch for epoch, _ in expected}) == 3  # and not all steps
    assert steps(document) == expected


def test_counts_are_those_of_all_texts_searched_byte_by_byte(run, tracer):
    text = f"The owl saw the owl by the mill. {HELD_BACK}."
    found = tracer.trace(text, least=4, most=100, documents=100)
    manifest = json.loads(Path(run.paths.corpus_manifest).read_text())
    (source,) = manifest["sources"].values()
    for span in found["spans"]:
        for split, name in (("train", TRAINED), ("validation", HELD_OUT)):
            content = (Path(run.paths.corpus) / source[split]["text"]).read_bytes()
            assert span["times"][name] == overlapping(content, span["text"].encode())
    held = next(span for span in found["spans"] if HELD_BACK in span["text"])
    assert held["times"][TRAINED] >= 20
    assert held["times"][HELD_OUT] >= 2
    assert all(
        not document["readings"] for document in held["documents"] if document["in"] == HELD_OUT
    )
    counts = [sum(span["times"].values()) for span in found["spans"]]
    assert counts == sorted(counts)


def overlapping(content, wanted):
    """How often `wanted` stands in `content`: where it begins without a space, at a line's start,
    as a word that follows a space has other tokens."""
    count, at = 0, content.find(wanted)
    while at >= 0:
        count += wanted.startswith(b" ") or content[at - 1 : at] in (b"", b"\n")
        at = content.find(wanted, at + 1)
    return count


@pytest.mark.parametrize(
    ("text", "kind", "stage"),
    [(TAUGHT, "instructions", "sft"), (PREFERRED, "preferences", "dpo")],
)
def test_a_reply_that_was_learned_from_records_says_so_and_when(run, tracer, text, kind, stage):
    found = tracer.trace(text, least=15, most=1, documents=100)
    (span,) = found["spans"]
    assert span["text"].strip() == text
    assert span["times"][TRAINED] == 0
    assert span["times"][kind] == len(span["documents"]) > 0
    read = {reading for document in span["documents"] for reading in steps(document)}
    ids = tracer.tokenizer.encode(span["text"], continues=True)
    assert sorted(read, key=lambda reading: reading[::-1]) == replay(run, stage, ids)
    assert {each["stage"] for each in span["documents"][0]["readings"]} == {stage}
    assert "Say " in span["documents"][0]["title"] or "kettles" in span["documents"][0]["title"]


def test_a_model_before_tuning_is_not_told_of_records(run):
    found = Tracer(run.model("pretrain")).trace(TAUGHT, least=15, most=10, documents=3)
    assert found["spans"] == []


def test_the_share_that_is_memorised_counts_tokens_in_long_spans_of_training(run, tracer):
    content = (run.folder / "texts" / "11.txt").read_text()
    found = tracer.trace(content[:300] + " Unheard words zq.", least=8, most=3, documents=1)
    inside = len(tracer.tokenizer.encode(content[:300]))
    assert 0.9 * inside <= found["memorised"]["tokens"] <= inside
    assert found["memorised"]["share"] == found["memorised"]["tokens"] / found["tokens"]
    assert tracer.trace(SECRET[:20], 8, 3, 1)["memorised"]["tokens"] == 0


def test_the_command_prints_what_people_and_programs_read(run, capsys):
    results = str(Path(run.paths.results))
    assert main(["trace", results, SECRET]) == 0
    said = capsys.readouterr().out
    assert "“" in said
    assert "11.txt" in said
    assert "read by pretrain at step" in said
    assert main(["trace", results, SECRET, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"][0]["times"][TRAINED] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RUN", ""], "the text is empty; give some words of a reply"),
        (["RUN", "a", "--min-tokens", "0"], "--min-tokens is 0: it must be at least 1"),
        (["models/novels", "a"], "not the model of a run that is here"),
        (["RUN", "\udcff"], "is not UTF-8"),
    ],
)
def test_a_mistake_is_one_sentence(run, capsys, arguments, sentence):
    given = [argument.replace("RUN", str(run.paths.results)) for argument in arguments]
    assert main(["trace", *given]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_an_index_of_other_tokens_is_refused(run, tmp_path, capsys):
    path = Path(run.paths.index)
    content = path.read_text()
    try:
        other = json.loads(content)["tokens"][::-1]
        changed = {key: value for key, value in json.loads(content).items() if key != SEAL}
        path.write_text(json.dumps(seal(changed | {"tokens": other})))
        assert main(["trace", str(run.paths.results), SECRET]) == 1
        assert "an index of other tokens" in capsys.readouterr().err
        path.unlink()
        assert main(["trace", str(run.paths.results), SECRET]) == 1
        assert "nanoeuler index --tokens" in capsys.readouterr().err
    finally:
        path.write_text(content)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 9}, r"tiny/dpo: its model was trained on other rows .*\(seed 1 → 9\)"),
        ({"pretrain": {"batch_tokens": 320}}, r"\(rows_per_step 5 → 10\); run the stage pretrain"),
        ({"sft": {"batch_tokens": 384}}, r"tiny/sft: .*\(rows_per_step 2 → 4\)"),
        (None, "is not the model that the stage sft started from, .*; run the stage sft again"),
    ],
)
def test_a_model_of_other_rows_than_the_configuration_has_is_refused(
    run, tmp_path, change, sentence
):
    folder = tmp_path / "tiny"
    shutil.copytree(run.paths.results, folder)
    if change is None:
        shutil.copytree(run.model("dpo"), folder / "pretrain" / "model", dirs_exist_ok=True)
    else:
        config = read_resolved(folder / RESOLVED)
        for key, value in change.items():
            config[key] = config[key] | value if isinstance(value, dict) else value
        (folder / "sft" / "traced.npz").unlink(missing_ok=True)  # it has the rows of the training
        write_resolved(folder / RESOLVED, config)
    for _ in range(2):
        with pytest.raises(UserError, match=sentence):
            Tracer(folder / "dpo" / "model")


def test_what_is_kept_of_records_is_found_again_where_it_is_damaged(run, tracer):
    kept = run.model("sft").parent / "traced.npz"
    before = tracer.trace(TAUGHT, least=15, most=1, documents=3)["spans"]
    content = kept.read_bytes()
    for damaged in (b"", content[:-50], content[:300] + b"?" + content[301:]):
        kept.write_bytes(damaged)
        assert Tracer(run.model("dpo")).trace(TAUGHT, 15, 1, 3)["spans"] == before
        assert len(kept.read_bytes()) == len(content)
