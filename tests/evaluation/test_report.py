"""The report: every number that the stages left, in one file that needs nothing else; half a run gives half a report."""

import json
from html.parser import HTMLParser

import fabricated
import pytest

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.background import is_non_commercial
from nanoeuler.evaluation.report.gather import gather
from nanoeuler.evaluation.report.page import page
from nanoeuler.evaluation.report.summary import summarise
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import BYTE_ORDER, build

BYTE = {chr(byte): 16 + index for index, byte in enumerate(BYTE_ORDER)}
"""Character → id of its byte."""


@pytest.fixture
def run(tmp_path):
    return gather(*fabricated.fabricate(tmp_path))


class Outline(HTMLParser):
    """Checks that tags close in order; collects headings and text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.pieces: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag, attrs):
        self.attributes.extend(attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.pieces.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def test_it_holds_the_numbers_of_every_stage(run):
    outline = Outline(page(run))
    assert outline.headings == [
        "made-up",
        "Results",
        "Samples",
        "Questions",
        "Training",
        "Prediction heads",
        "Data",
        "Gradient check",
        "Licences of the data",
        "Provenance",
    ]
    for number in ("1.734", "1.689", "2.613", "2.547", "1.912", "5.101"):  # bits per byte and the bigram floor
        assert number in outline.text, number
    for number in ("78.3 %", "± 2.4", "24.7 %", "1.3 %", "11.7 %", "19.3 %", "97.3 %"):  # answers, with error and baselines
        assert number in outline.text, number
    assert "1.05 M parameters" in outline.text
    assert "4.04 MB of text of gutenberg and fineweb (2.05 M tokens read in 2 min 14 s)" in outline.text
    assert "fine-tuned on 2,412 instructions" in outline.text
    assert "4.5 × 10⁻⁹" in outline.text
    assert "The river Ansel rises in the Grey Hills." in outline.text
    assert "31.0 %" in outline.text  # the second head
    assert "2.04" in outline.text  # bytes per token
    assert "world instructions, held out 58" in outline.text
    assert "0123456789ab" in outline.text  # the commit
    assert '"learning_rate": 0.0003' in outline.text  # the configuration


def test_it_needs_no_network_and_runs_nothing(run):
    html = page(run)
    outline = Outline(html)
    assert not {"src", "href", "srcset", "action", "onload"} & {name for name, _ in outline.attributes}
    assert not [word for word in ("http:", "https:", "<script", "@import", "url(") if word in html]


def test_text_of_models_and_questions_cannot_break_the_page(run):
    run.stages["sft"].evaluation["samples"][0]["text"] = "</p></main><script>alert(1)</script>"
    html = page(run)
    Outline(html)
    assert "<script" not in html
    assert "the &lt;tin&gt; &amp; a very long reply" in html


def test_the_tokenizer_of_the_first_model_is_described(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    (folder / "pretrain" / "model").mkdir()
    Tokenizer(build([(BYTE["t"], BYTE["h"]), (BYTE[" "], 272), (273, BYTE["<"])])).save(folder / "pretrain" / "model" / "tokenizer.json")
    html = page(gather(config, folder))
    assert "Byte-level BPE of 275 tokens: 16 reserved, the 256 bytes, 3 learned merges." in html
    assert "<code>␣th&lt;</code> <code>␣th</code> <code>th</code>" in html


def test_a_non_commercial_licence_is_said_aloud(run):
    assert "A model trained on alpaca instructions is for non-commercial use only." in page(run)
    run.stages["sft"].evaluation["model_info"]["instructions"]["licence"] = run.stages["sft_scratch"].evaluation["model_info"]["instructions"]["licence"] = (
        "MIT"
    )
    assert "None of these licences forbids commercial use." in page(run)
    run.corpus["sources"]["fineweb"]["licence"] = None
    assert "Where a licence is unknown, find out" in page(run)


@pytest.mark.parametrize(
    ("licence", "forbids"), [("CC BY-NC 4.0", True), ("cc-by-nc-sa-4.0", True), ("non-commercial research", True), ("ODC-By 1.0", False), ("MIT", False)]
)
def test_licences_that_forbid_commercial_use(licence, forbids):
    assert is_non_commercial(licence) is forbids


def test_stages_that_are_not_there_are_left_out(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain",))
    (folder / "gradients.json").unlink()
    outline = Outline(page(gather(config, folder)))
    assert "Gradient check" not in outline.headings
    assert "fine-tuned" not in outline.text.replace("fine-tuned one replies", "").replace("a fine-tuned", "")
    assert "1.734" in outline.text


def test_a_run_without_evaluations_corpus_or_questions_still_has_a_report(tmp_path):
    _, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft"))
    for stage in ("pretrain", "sft"):
        (folder / "evaluation" / f"{stage}.json").unlink()
    outline = Outline(page(gather({"run": "made-up"}, folder)))
    assert outline.headings == ["made-up", "Training", "Gradient check", "Provenance"]


def test_evaluations_alone_have_a_report(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    for stage in ("pretrain", "sft", "sft_scratch"):
        (folder / stage / "metrics.jsonl").unlink()
    run = gather(config, folder)
    for evaluation in run.evaluations.values():
        evaluation["answers"] = None
        evaluation["samples"] = []
    outline = Outline(page(run))
    assert "Training" not in outline.headings
    assert "1.734" in outline.text


def test_an_unfinished_stage_is_said_to_be_one(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    path = folder / "sft" / "metrics.jsonl"
    lines = path.read_text().splitlines()[:20]
    path.write_text("\n".join(lines) + '\n{"step": 100, "lo')  # killed while writing
    text = Outline(page(gather(config, folder))).text
    assert "Training is not finished yet: fine-tuned." in text


def test_a_failed_gradient_check_is_not_hidden(run):
    run.gradients["rows"][1] |= {"error": None, "ok": False}
    run.gradients |= {"passed": False, "largest_error": None}
    text = Outline(page(run)).text
    assert "FAILED" in text
    assert "✗ wrong" in text
    assert "not a number" in text


def test_the_summary_has_what_the_page_shows(run):
    summary = summarise(run)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["bigram_bits_per_byte"] == {"gutenberg": 2.613, "fineweb": 2.547}
    pretrain, sft = summary["stages"]["pretrain"], summary["stages"]["sft"]
    assert pretrain["bits_per_byte"] == {"gutenberg": 1.734, "fineweb": 1.689}
    assert (pretrain["parameters"], pretrain["steps"], pretrain["tokens"], pretrain["finished"]) == (1_049_216, 500, 500 * 4096, True)
    assert pretrain["tokens_per_second"] == pytest.approx(15_300, rel=0.05)
    assert sft["answers"]["score"] == pytest.approx(0.783, abs=0.002)
    assert sft["answers"]["commonest_answer"]["score"] == 0.117
    assert "replies" not in sft["answers"]
    assert summary["gradients"] == {"tensors": 9, "passed": True, "tolerance": 1e-6, "largest_error": 4.53e-9, "quick": False}


def test_the_command_writes_page_and_summary(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    output, metrics = folder / "report.html", folder / "metrics.json"
    assert main(["report", "--config", json.dumps(config), "--run", str(folder), "--output", str(output), "--metrics", str(metrics)]) == 0
    assert "1.734" in output.read_text(encoding="utf-8")
    assert json.loads(metrics.read_text())["run"] == "made-up"


def test_a_folder_that_is_no_run_and_damaged_metrics_are_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", "--config", "{}", "--run", str(tmp_path / "empty"), "--output", str(tmp_path / "report.html")]) == 1
    assert "holds neither a stage's metrics.jsonl nor an evaluation" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
    config, folder = fabricated.fabricate(tmp_path)
    path = folder / "pretrain" / "metrics.jsonl"
    path.write_text(path.read_text().replace('{"step": 20,', '{"step": 20;', 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3: not valid JSON"):
        gather(config, folder)
