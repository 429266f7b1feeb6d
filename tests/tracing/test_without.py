"""`nanoeuler without` on a tiny run, and the rows that it trains on."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.config import RESOLVED, read_resolved, write_resolved
from nanoeuler.corpus.origins import Origins
from nanoeuler.model.files import load_model
from nanoeuler.tracing.trace import Tracer
from nanoeuler.tracing.without import leave_out, train_without
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.streams import TextStream
from tests.tracing.conftest import SECRET

END = 0
LEFT_OUT = (13, 24)  # a document, from its </s> to the next one's


@pytest.mark.parametrize("document_mask", [True, False])
def test_rows_are_the_same_but_for_the_document_which_nobody_sees(document_mask):
    text = np.random.default_rng(2).integers(1, 9, 70).astype(np.int32)
    text[[0, 6, 13, 24, 50]] = END
    given = text, 8, 24, (1.0, 0.5), END, document_mask, 7, "pretrain"
    whole, without = TextStream(*given), TextStream(*given, without=[LEFT_OUT])
    numbers = np.arange(72).reshape(9, 8)  # the tokens of each row
    for step in range(6):
        before, after = whole.rows(step), without.rows(step)
        places = numbers[whole.order.step(step)]
        inside = (places >= LEFT_OUT[0]) & (places < LEFT_OUT[1])
        assert (after.ids[~inside] == before.ids[~inside]).all()
        assert (after.targets[~inside] == before.targets[~inside]).all()
        assert (after.ids[inside] == END).all()
        assert (after.targets[inside] == -1).all()
        for name in ("positions", "starts"):
            assert (getattr(after, name)[~inside] == getattr(before, name)[~inside]).all()
        assert after.weights.sum() == pytest.approx(1 if (after.targets >= 0).any() else 0)


@pytest.fixture(scope="module")
def told(run):
    """What the command printed for programs, of the document with the secret."""
    said, arguments = StringIO(), ["--device", "reference", "--json"]
    with redirect_stdout(said):
        assert main(["without", "11.txt", run.paths.results, *arguments]) == 0
    return json.loads(said.getvalue())


def test_the_document_is_learned_less_and_the_rest_as_well(run, told):
    bits = told["bits_per_byte"]
    change = {name: values["without"] - values["with"] for name, values in bits.items()}
    assert change["document"] > 0
    assert abs(change["rest"]) < change["document"]
    assert told["documents"][0]["address"] == str(run.folder / "texts" / "11.txt")
    assert set(told["replies"]) == {"document", "with", "without"}
    text = (run.folder / "texts" / "11.txt").read_text()
    assert told["prompt"] + told["replies"]["document"] in text.removesuffix("\n")
    assert 1 <= len(told["prompt"].split()) <= 8


def test_the_new_model_has_not_read_the_document_and_a_trace_knows_it(run, told):
    folder = Path(told["models"]["without"])
    (span,) = Tracer(folder).trace(SECRET, least=20, most=1, documents=1)["spans"]
    assert [document["readings"] for document in span["documents"]] == [[]]


def test_a_second_call_takes_the_model_that_is_there(run, told, capsys):
    arguments = ["without", "11.txt", run.paths.results, "--device", "reference"]
    assert main([*arguments, "--prompt", "The hen saw"]) == 0
    said = capsys.readouterr()
    assert "was finished with these settings" in said.err
    assert "“The hen saw” goes on" in said.out
    assert f"{told['bits_per_byte']['document']['without']:.4f}" in said.out


def test_training_begins_with_the_run_s_last_checkpoint_before_the_document(run, tmp_path, capsys):
    folder = tmp_path / "tiny"
    shutil.copytree(run.paths.results, folder)
    config = read_resolved(folder / RESOLVED)
    section = config["pretrain"] | {"schedule": "wsd", "decay_share": 0.4, "tokens": 4000}
    write_resolved(folder / RESOLVED, config | {"pretrain": section})
    given = ["--tokens", run.paths.tokens, "--tokenizer", run.paths.tokenizer]
    given += ["--config", str(folder / RESOLVED), "--output", str(folder / "pretrain")]
    assert main(["pretrain", *given, "--device", "reference"]) == 0
    kept = Checkpoints(folder / "pretrain" / "checkpoints")
    assert kept.steps() == [15, 25]  # the one before the decay, and the last
    late = leave_out(folder, ["01.txt"])  # which step 16 is the first to read
    weights = []
    for _ in range(2):
        model = train_without(late, ReferenceBackend())
        weights.append(load_model(model).parameters)
        shutil.rmtree(late.folder)
        kept.remove(15)
    said = capsys.readouterr().err
    assert said.count("going on from step 15 of 25") == 1
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != load_model(folder / "pretrain" / "model").parameters).any()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["11.txt", "11"], "11: this document is named twice; name it once"),
        (["nowhere.txt"], "has no document nowhere.txt; give a title"),
        ([], "name a document of the corpus and the folder of a run"),
    ],
)
def test_a_mistake_is_one_sentence(run, capsys, names, sentence):
    assert main(["without", *names, run.paths.results]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_a_run_without_its_model_is_refused(run, tmp_path, capsys):
    assert main(["without", "11.txt", str(tmp_path)]) == 1
    assert "not the folder of a run" in capsys.readouterr().err
    (tmp_path / "configuration.json").write_bytes(Path(run.paths.configuration).read_bytes())
    assert main(["without", "11.txt", str(tmp_path)]) == 1
    assert "has no pretrained model to compare with" in capsys.readouterr().err


def test_a_document_that_is_held_out_and_names_of_several_are_refused(run, capsys):
    origins = Origins(Path(run.paths.corpus_manifest))
    (source,) = origins.manifest["sources"]
    held_out = origins.of("validation", source, 0)
    assert main(["without", Path(held_out.address).name, run.paths.results]) == 1
    assert "so that no model has read it" in capsys.readouterr().err
