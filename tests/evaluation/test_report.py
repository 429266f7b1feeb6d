"""The report: every number of the stages, in one file; half a run gives half a report."""

import base64
import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser

import fabricated
import pytest
from test_charts import numbers

from nanoeuler.cli import main
from nanoeuler.evaluation.card import card, summarise
from nanoeuler.evaluation.formats import duration
from nanoeuler.evaluation.report.background import licence_verdict, used_licences
from nanoeuler.evaluation.report.gather import gather
from nanoeuler.evaluation.report.page import page
from nanoeuler.model.companions import is_non_commercial
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, keep_model, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.storage.integrity import seal
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
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"style", "script"} & set(self.open):
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
        "Depth",
        "Data",
        "Gradient check",
        "Licences of the data",
        "Pipeline",
        "Provenance",
    ]
    bits_per_byte = ("1.734", "1.689", "1.912", "5.101")
    bigram = ("2.613", "2.547")
    answers = ("78.3 %", "± 2.4", "24.7 %", "1.3 %", "97.3 %")
    baselines = ("11.7 %", "19.3 %")
    for number in bits_per_byte + bigram + answers + baselines:
        assert number in outline.text, number
    assert "1.05 M parameters" in outline.text
    assert (
        "4.04 MB of text of gutenberg and fineweb (2.05 M tokens read in 2 min 14 s)"
        in outline.text
    )
    assert "fine-tuned on 2,412 instructions" in outline.text
    assert "4.5 × 10⁻⁹" in outline.text
    assert "The river Ansel rises in the Grey Hills." in outline.text
    assert "31.0 %" in outline.text  # the second head
    assert "2.04" in outline.text  # bytes per token
    assert "world instructions, held out 58" in outline.text
    assert "0123456789ab" in outline.text  # the commit
    assert '"learning_rate": 0.0003' in outline.text  # the configuration


def test_the_contents_lead_to_every_section(run):
    outline = Outline(page(run))
    ids = [value for name, value in outline.attributes if name == "id"]
    links = [value for name, value in outline.attributes if name == "href"]
    sections = len(outline.headings) - 1  # the first is the page's
    assert len(links) == 2 * sections  # from the list, and from each to itself
    assert set(links) == {f"#{name}" for name in ids if name != "contents"}
    assert links[:2] == ["#results", "#samples"]
    assert "licences-of-the-data" in ids


def test_sources_are_called_by_their_titles(run):
    """The demo's world is invented, so its report must not say that it read Project Gutenberg."""
    run.config["sources"] |= {
        "gutenberg": {"title": "invented books"},
        "fineweb": {"title": "invented pages"},
    }
    for text in (Outline(page(run)).text, card(run)):
        assert "of invented books and invented pages" in text
        assert "bits per byte, invented books" in text
        before_the_settings = text.partition('"run"')[0]
        assert "gutenberg" not in before_the_settings.lower()
        assert "fineweb" not in before_the_settings.lower()
    assert 'language: ["en"]' in card(run)


def test_tasks_stand_beside_their_error_and_what_picking_at_random_gets(run):
    text = Outline(page(run)).text
    assert (
        "hellaswag acc_norm, 1,000 items 27.4 % ± 1.1 29.1 % ± 1.1 29.1 % ± 1.1 25.0 % at random"
        in text
    )
    assert "lambada, perplexity 412.6 412.6 412.6 –" in text
    run.evaluations["sft"]["tasks"]["lambada"]["perplexity"]["score"] = 395_090_273.1
    assert "lambada, perplexity 412.6 395 M 412.6 –" in Outline(page(run)).text
    assert "replies to 58 instructions that stop 4.0 % 97.3 % 95.1 % –" in text
    assert "replies to 58 instructions, repeated 4-grams 5.2 %" in text


def test_curves_are_drawn_over_tokens_and_over_time(run):
    html = page(run)
    text = Outline(html).text
    assert "Held-out text bits per byte" in text
    assert "Held-out text over time bits per byte" in text
    axes = {each["title"]: each["x_label"] for each in numbers(html) if "title" in each}
    assert axes["Held-out text"] == "tokens"
    assert axes["Held-out instructions over time"] == "seconds"


def test_an_aligned_model_shows_its_accuracy_margins_and_drift(tmp_path):
    run = gather(*fabricated.fabricate(tmp_path, stages=("pretrain", "sft", "dpo")))
    outline = Outline(page(run))
    text = outline.text
    assert "then aligned with 1,234 preference pairs in 1 min 10 s" in text
    assert "70 % of 87 held-out pairs ranked right a coin: 50 %" in text
    assert "Drift estimate of KL(reference ‖ policy), nats per token held-out 0.033" in text
    assert "chosen 0.500" in text
    assert "rejected -0.667" in text
    assert "MFU share of the device's peak, median aligned 31.0 %" in text
    assert "farm preferences 1,234 – – – farm preferences, held out 87 – – –" in text
    assert (
        "pretrained fine-tuned aligned baseline bits per byte, gutenberg 1.734 1.912 1.953" in text
    )
    assert "aligned It rises in the Grey Hills!" in text
    trained = "A model trained on alpaca instructions and farm preferences"
    assert f"{trained} is for non-commercial use only." in text


def test_a_rewarded_model_shows_what_its_replies_earned_and_that_they_did_not_collapse(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft"))
    lines = [{"stage": "rl", "records": 1234, "provenance": fabricated.PROVENANCE}]
    for step in range(1, 6):
        base = {"step": step, "tokens": 4096 * step, "seconds": 14.0 * step}
        sampled = {"reward": step / 10, "entropy": 1.5, "reply_tokens": 12.0, "ratio": 1.0}
        decided = {"all_right": 0.25, "all_wrong": 0.125, "kl": 0.5}
        logged = {"loss": 0.1, "learning_rate": 1e-5, "gradient_norm": 0.4}
        logged |= {"tokens_per_second": 5900.0, "mfu": None}
        lines.append(base | logged | sampled | decided)
        lines.append(base | {"validation": {"reward": step / 8, "reply_tokens": 11.0}})
    fabricated.write_metrics(folder / "rl" / "metrics.jsonl", lines)
    text = Outline(page(gather(config, folder))).text
    assert "then rewarded for 1,234 problems in 1 min 10 s" in text
    assert "Rewards" in text
    assert "Reward mean of replies sampled 0.300 held-out, greedy 0.625" in text
    assert "Entropy nats per token" in text
    assert "all right 25.0 % all wrong 12.5 %" in text


def test_a_stage_is_described_by_its_own_settings(tmp_path):
    """A short stage logs no step at its peak, and SimPO knows no reference."""
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft", "dpo"))
    assert (
        "Rewards β · log-probability against the reference"
        in Outline(page(gather(config, folder))).text
    )
    header, *lines = fabricated.preference_lines()
    header["config"] = {"dpo": {"loss": "simpo", "learning_rate": 3e-5}}
    fabricated.write_metrics(folder / "dpo" / "metrics.jsonl", [header, *lines])
    text = Outline(page(gather(config, folder))).text
    assert "Rewards β · log-probability per token chosen" in text
    assert "aligned peak 3.0 × 10⁻⁵" in text


def test_held_out_pairs_are_those_of_the_model_that_is_handed_on(tmp_path):
    """With `keep: best` that is neither the overtrained last model, nor the one before the stage,
    however good that was."""
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft", "dpo"))
    header, *lines = fabricated.preference_lines()
    before = {
        "step": 0,
        "tokens": 0,
        "seconds": 0.1,
        "validation": {"loss": 0.1, "accuracy": 0.99, "drift": 0.0},
    }
    overtrained = {
        "step": 101,
        "tokens": 413_696,
        "seconds": 71.0,
        "validation": {"loss": 0.9, "accuracy": 0.41, "drift": 3.0},
    }
    fabricated.write_metrics(
        folder / "dpo" / "metrics.jsonl", [header, before, *lines[:-1], overtrained, lines[-1]]
    )
    run = gather(config, folder)
    assert "41 % of 87 held-out pairs ranked right" in Outline(page(run)).text
    best = next(line["step"] for line in lines if line.get("validation", {}).get("accuracy") == 0.7)
    described = {"model": {"preset": "small"}, "info": {"step": best}}
    description = {"nanoeuler": seal(described)}
    (folder / "dpo" / "model").mkdir(exist_ok=True)
    (folder / "dpo" / "model" / "config.json").write_text(json.dumps(description))
    run = gather(config, folder)
    assert "70 % of 87 held-out pairs ranked right" in Outline(page(run)).text
    assert summarise(run)["stages"]["dpo"]["validation"]["accuracy"] == 0.7


def test_the_rules_stand_with_the_time_that_each_took(run):
    html = page(run)
    text = Outline(html).text
    assert "rule needs jobs time of all time fetch_book 2 5 s 3 % " in text
    assert "build_corpus clean_book 1 12 s 6 %" in text
    assert "pretrain build_corpus 1 (2 attempts) 2 min 19 s 70 %" in text
    assert "clean_book fetch_book 2 earlier " in text
    assert "write_report evaluate_model, build_corpus 1 this page" in text
    assert ">all<" not in html  # what the report does not need is not told


def test_what_was_planned_stands_beside_what_it_took(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    energy = {"gpu_joules": 50_000.0, "cpu_joules": 8000.0}
    stages = {
        "pretrain": {"seconds": 100.0, "joules": energy},
        "sft": {"seconds": None},
        "dpo": {"seconds": 9.0},
    }
    disk = {"data_disk": 0.0, "results_disk": 4e6, "results_peak": 4e6}
    plan = {**disk, "memory": 1e9, "stages": stages}
    plan["bits_per_byte"] = {"gutenberg": {"low": 1.9, "middle": 2.0, "high": 2.1}}
    fabricated.write(folder / "plan.json", plan)
    metrics = folder / "pretrain/metrics.jsonl"
    *lines, last = metrics.read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"gpu_joules": 46_100.0}))
    metrics.write_text("\n".join(lines))
    run = gather(config, folder)
    assert summarise(run)["stages"]["pretrain"]["joules"] == {"gpu_joules": 46_100.0}
    trained = run.stages["pretrain"].finished["seconds"]
    text = Outline(page(run)).text
    assert f"of planned pretrained, time 1 min 40 s {duration(trained)} {trained:.0f}" in text
    assert "pretrained, energy of the GPU 50 kJ 46.1 kJ 92 %" in text
    assert "pretrained, energy of the CPU 8 kJ – –" in text
    assert re.search(r"pretrained [^%]* n/a 46.1 kJ GPU", text)
    assert "n/a not measured" in text  # after sft
    assert f"time – {duration(run.stages['sft'].finished['seconds'])} –" in text
    assert "aligned, time 9 s – –" in text
    assert "memory of a training process, at least 1 GB 1.25 GB 125" in text
    assert "disk, data – " in text
    measured = run.bits_per_byte["gutenberg"]
    assert f"bits per byte, gutenberg 2.000 (1.900 to 2.100) {measured:.3f} " in text
    (folder / "plan.json").unlink()
    assert "Planned and measured" not in page(gather(config, folder))


def test_a_run_by_hand_has_times_without_what_a_rule_needs(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    (folder / "pipeline.json").unlink()
    text = Outline(page(gather(config, folder))).text
    assert "pretrain 1 (2 attempts) 2 min 19 s 70 %" in text
    assert "write_report" not in text


@pytest.mark.parametrize("damage", ["loss", "bits", "depth", "nothing measured"])
def test_values_that_are_no_numbers_leave_a_page(tmp_path, damage):
    config, folder = fabricated.fabricate(tmp_path)
    run = gather(config, folder)
    if damage == "loss":
        for line in run.stages["pretrain"].steps:
            line["loss"] = float("nan")
        run.stages["sft"].steps[3]["loss"] = float("inf")
    elif damage == "bits":
        for evaluation in run.evaluations.values():
            evaluation["held_out"]["gutenberg"]["bits_per_byte"] = float("nan")
            evaluation["tasks"]["hellaswag"]["score"] = float("nan")
    elif damage == "depth":
        for evaluation in run.evaluations.values():
            evaluation["trajectory"]["stream_angle"][2] = None
            evaluation["trajectory"]["norm"] = [None] * 9
    else:
        for evaluation in run.evaluations.values():
            evaluation |= {
                "held_out": {},
                "tasks": {},
                "chat": None,
                "answers": None,
                "samples": [],
                "trajectory": None,
            }
    html = page(run)
    outline = Outline(html)
    told = "nan bits per byte, held-out gutenberg" in outline.text
    assert told is (damage == "bits")  # told, but not drawn
    assert numbers(html)  # which a browser can read
    assert not [value for name, value in outline.attributes if name == "style" and "nan" in value]
    assert "Provenance" in outline.headings


def test_it_needs_no_network_and_allows_none(run):
    html = page(run)
    outline = Outline(html)
    assert not {"src", "srcset", "action", "onload"} & {name for name, _ in outline.attributes}
    assert all(link.startswith("#") for name, link in outline.attributes if name == "href")
    words = ("http:", "https:", "@import", "url(")
    assert not [word for word in words if word in html.replace("url(#", "")]
    (script,) = re.findall("<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in outline.attributes


def test_text_of_models_and_questions_cannot_break_the_page(run):
    run.stages["sft"].evaluation["samples"][0]["text"] = "</p></main><script>alert(1)</script>"
    run.name = "</script><script>alert(2)"
    html = page(run)
    Outline(html)
    assert "<script>alert" not in html
    assert "the &lt;tin&gt; &amp; a very long reply" in html


def test_the_tokenizer_of_the_first_model_is_described(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    (folder / "pretrain" / "model").mkdir()
    Tokenizer(build([(BYTE["t"], BYTE["h"]), (BYTE[" "], 272), (273, BYTE["<"])])).save(
        folder / "pretrain" / "model" / "tokenizer.json"
    )
    html = page(gather(config, folder))
    assert "Byte-level BPE of 275 tokens: 16 reserved, the 256 bytes, 3 learned merges." in html
    assert "<code>␣th&lt;</code> <code>␣th</code> <code>th</code>" in html


def test_a_non_commercial_licence_is_said_aloud(run):
    assert "A model trained on alpaca instructions is for non-commercial use only." in page(run)
    run.stages["sft"].evaluation["model_info"]["instructions"]["licence"] = run.stages[
        "sft_scratch"
    ].evaluation["model_info"]["instructions"]["licence"] = "MIT"
    assert "None of these licences forbids commercial use." in page(run)
    for evaluation in run.evaluations.values():
        evaluation["model_info"]["imported"] = {"name": "big", "licence": "cc-by-nc-4.0"}
    assert "A model trained on big model is for non-commercial use only." in page(run)
    for evaluation in run.evaluations.values():
        del evaluation["model_info"]["imported"]
    run.config["pretrain"] = {"init_from": "results/before"}
    assert used_licences(run)["results/before model"] == "unknown"
    del run.config["pretrain"]
    run.corpus["sources"]["fineweb"]["licence"] = "own text"
    assert "Whether a model of your own text may be passed on depends" in page(run)
    run.corpus["sources"]["fineweb"]["licence"] = None
    assert "Where a licence is unknown, find out" in page(run)


@pytest.mark.parametrize(
    ("licence", "forbids"),
    [
        ("CC BY-NC 4.0", True),
        ("cc-by-nc-sa-4.0", True),
        ("non-commercial research", True),
        ("ODC-By 1.0", False),
        ("MIT", False),
    ],
)
def test_licences_that_forbid_commercial_use(licence, forbids):
    assert is_non_commercial(licence) is forbids


def test_an_unknown_licence_is_found_in_a_mixture():
    assert (
        licence_verdict({"mix instructions": "CC0; unknown"})
        == "Where a licence is unknown, find out before you pass the model on."
    )
    assert (
        licence_verdict({"mix instructions": "CC0; MIT"})
        == "None of these licences forbids commercial use."
    )


def test_stages_that_are_not_there_are_left_out(tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=("pretrain",))
    (folder / "gradients.json").unlink()
    outline = Outline(page(gather(config, folder)))
    assert "Gradient check" not in outline.headings
    assert "fine-tuned" not in outline.text.replace("fine-tuned one replies", "").replace(
        "a fine-tuned", ""
    )
    assert "1.734" in outline.text


def test_a_run_without_evaluations_corpus_or_questions_still_has_a_report(tmp_path):
    _, folder = fabricated.fabricate(tmp_path, stages=("pretrain", "sft"))
    for stage in ("pretrain", "sft"):
        (folder / "evaluation" / f"{stage}.json").unlink()
    outline = Outline(page(gather({"run": "made-up"}, folder)))
    assert outline.headings == ["made-up", "Training", "Gradient check", "Pipeline", "Provenance"]


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


def test_a_model_that_is_kept_while_the_next_is_made_is_told_and_found(tmp_path, capsys):
    config, folder = fabricated.fabricate(tmp_path)
    vocabulary, model = tmp_path / "tokenizer.json", folder / "pretrain" / "model"
    Tokenizer(build([])).save(vocabulary)
    shape = ModelConfig.from_dict({"preset": "small", "dim": 16, "layers": 1, "vocab_size": 272})
    weights = initial_parameters(shape, seed=1)
    save_model(model, SavedModel(shape, weights, vocabulary, "pretrain", None, {"step": 50}))
    assert "the model before" not in Outline(page(gather(config, folder))).text
    keep_model(model)
    shutil.rmtree(model)  # as Snakemake does when the rule starts
    run = gather(config, folder)
    told = "(until then, the model before is used, and its scores are shown): pretrained."
    assert told in Outline(page(run)).text
    assert run.tokenizer == model.with_name("model.previous") / "tokenizer.json"
    last = run.stages["pretrain"].validations[-1]["validation"]
    assert run.stages["pretrain"].handed_on == last  # steps of the next model are not of this one
    for place in (folder, folder / "pretrain", model):
        capsys.readouterr()
        assert main(["info", str(place), "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["model"] == shape.to_dict()
        assert "is being made again; until it is whole" in printed.err


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
    assert (
        pretrain["parameters"],
        pretrain["steps"],
        pretrain["tokens"],
        pretrain["finished"],
    ) == (1_049_216, 500, 500 * 4096, True)
    assert pretrain["tokens_per_second"] == pytest.approx(15_300, rel=0.05)
    assert sft["answers"]["score"] == pytest.approx(0.783, abs=0.002)
    assert sft["answers"]["commonest_answer"]["score"] == 0.117
    assert "replies" not in sft["answers"]
    assert sft["tasks"]["hellaswag"]["score"] == 0.291
    assert sft["trajectory"]["layers"] == 4
    assert summary["rule_seconds"] == {
        "build_corpus": 12.5,
        "evaluate_model": 41.0,
        "fetch_book": 5.0,
        "pretrain": 139.0,
    }
    assert summary["gradients"] == {
        "tensors": 9,
        "derivatives_passed": True,
        "passed": True,
        "tolerance": 1e-6,
        "largest_error": 4.53e-9,
        "quick": False,
        "engine": fabricated.ENGINE,
    }


def test_the_command_writes_page_and_summary(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    output, metrics = folder / "report.html", folder / "metrics.json"
    arguments = ["--config", json.dumps(config), "--run", str(folder), "--output", str(output)]
    assert main(["report", *arguments, "--metrics", str(metrics)]) == 0
    assert "1.734" in output.read_text(encoding="utf-8")
    assert json.loads(metrics.read_text())["run"] == "made-up"


def test_losses_of_a_run_that_diverged_are_no_damage(tmp_path):
    config, folder = fabricated.fabricate(tmp_path)
    path = folder / "pretrain" / "metrics.jsonl"
    header, *lines = fabricated.pretraining_lines()
    losses = (math.nan, math.inf)
    diverged = [line | {"loss": loss} for line, loss in zip(lines, losses, strict=False)]
    fabricated.write_metrics(path, [header, *diverged, *lines[2:]])
    assert "Training loss" in Outline(page(gather(config, folder))).text
