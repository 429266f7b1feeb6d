"""Where a text comes from, asked of a real server."""

import json
import shutil

import pytest

from nanoeuler.cli import main
from tests.serving.server import ServerProcess
from tests.tracing.conftest import SECRET, TAUGHT

TEXT = f"I heard that {SECRET} in town. {TAUGHT} Yes, {SECRET}: é."


@pytest.fixture(scope="module")
def server(run, tmp_path_factory):
    """The last model of the run, its first one, and that one without its run."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(run.model("pretrain"), folder / "alone")
    with ServerProcess(folder, run.model("dpo"), run.model("pretrain"), folder / "alone") as server:
        yield server


def test_an_answer_is_what_the_command_prints_and_says_which_characters(run, server, capsys):
    assert main(["trace", str(run.model("dpo")), TEXT, "--json", "--min-tokens", "12"]) == 0
    expected = json.loads(capsys.readouterr().out)
    answer = server.post("/trace", {"model": "tiny-dpo", "text": TEXT, "min_tokens": 12})
    found = answer.json()
    assert answer.status == 200
    for each in (expected, found):
        del each["search_seconds"], each["model"]
    assert found == expected
    marked = [place for span in found["spans"] for place in span["characters"]]
    for start, stop in marked:
        assert TEXT[start:stop] in {span["text"].strip() for span in found["spans"]}
    starts = {at for at in range(len(TEXT)) if TEXT.startswith((SECRET, TAUGHT), at)}
    assert starts <= {start for start, _ in marked}
    assert len(starts) == 3


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"model": "alone", "text": TEXT}, 400, "not the model of a run that is here"),
        ({"model": "nobody", "text": TEXT}, 404, "there is no model 'nobody'"),
        ({"model": "tiny-dpo"}, 400, "text: is missing"),
        ({"model": "tiny-dpo", "text": ""}, 400, "text: string should have at least 1 character"),
        (
            {"model": "tiny-dpo", "text": "a" * 10_001},
            400,
            "text: string should have at most",
        ),
        ({"model": "tiny-dpo", "text": TEXT, "spans": 101}, 400, "spans: input should be less"),
    ],
)
def test_a_mistake_is_one_sentence(server, asked, status, sentence):
    answer = server.post("/trace", asked)
    assert answer.status == status
    assert sentence in answer.json()["error"]["message"]


def test_models_without_an_index_are_not_traced(server):
    listed = server.get("/v1/models").json()["data"]
    traced = {model["id"]: model["nanoeuler"]["traced"] for model in listed}
    assert traced == {"tiny-dpo": True, "tiny-pretrain": True, "alone": False}
