"""The cost of a run is told before it starts. One that is too large gets the command to type."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from nanoeuler import log
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.cli import planning as plan_text
from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.config.stages import PRETRAIN, SFT
from nanoeuler.corpus.sources.gutenberg import SOURCE as GUTENBERG
from nanoeuler.errors import UserError
from nanoeuler.model.spec import storage_elements, trained_table
from nanoeuler.planning import data
from nanoeuler.planning import plan as planning
from nanoeuler.planning import speed as planned_speed
from tests.plans import ROOT, in_an_empty_folder, plan_of  # noqa: F401 (a fixture)


def test_a_real_run_counts_downloads_disk_memory_tokens_and_epochs():
    config, plan = plan_of("small")
    assert plan.parameters == 1_049_216
    assert plan.download["books"] == pytest.approx(139 * 700_000)
    assert plan.download["web pages"] == pytest.approx(65e6)
    assert plan.text_bytes == pytest.approx(194e6, rel=0.02)
    assert plan.stages["pretrain"].tokens == 100_000_000
    assert plan.stages["pretrain"].epochs == pytest.approx(1, rel=0.1)
    assert plan.data_disk > plan.text_bytes
    assert plan.results_disk > 4 * plan.parameters
    assert 1e8 < plan.memory < 1e9
    assert planning.shortages(config, plan, "config/small.yaml") == []


def test_the_plan_says_how_many_steps_a_few_records_make(tmp_path):
    records = tmp_path / "records.json"
    records.write_bytes(bytes(30_000))
    overrides = ["sft.batch_tokens=null", "sft.epochs=null", f"sft.instructions={records}"]
    config, plan = plan_of("small", *overrides)
    stage, settings = plan.stages["sft"], planning.settings_of(config, "sft")
    assert (stage.epochs, settings.batch_tokens) == (10, 2048)
    assert stage.steps == pytest.approx(stage.tokens / 2048, rel=0.2)
    steps = f"10 epochs, {stage.steps} steps, "
    assert steps in plan_text.describe(config, plan)


def test_a_local_file_counts_as_large_as_it_is(tmp_path):
    shard, records = tmp_path / "shard.parquet", tmp_path / "records.json"
    shard.write_bytes(bytes(6_500_000))
    records.write_bytes(bytes(1_000_000))
    config = load("config/gpt2.yaml", ["corpus.fineweb.shards=1", f"sft.instructions={records}"])
    config["sources"]["fineweb"]["shards"] = [{"url": shard.as_uri()}]
    plan = planning.make_plan(config, ReferenceBackend())
    assert plan.sources == {"fineweb": pytest.approx(10e6)}  # of text
    assert plan.stages["sft"].epochs == 3
    of_a_token = data.bytes_per_token(config["tokenizer"]["vocab_size"])
    assert plan.stages["sft"].tokens == pytest.approx(3 * 0.98 * 1.2e6 / of_a_token)
    shard.unlink()
    assert planning.make_plan(config, ReferenceBackend()).text_bytes > 1e9


def test_sums_in_one_order_need_gradients_for_each_lane():
    (usual, _), (exact, _) = plan_of("small"), plan_of("small", "pretrain.reproducible=ranks")
    before, after = (
        planning.training_memory(each, PRETRAIN, ReferenceBackend()) for each in (usual, exact)
    )
    elements = storage_elements(trained_table(planning.trained_form(usual, PRETRAIN)))
    assert after - before == 7 * 4 * elements


def test_a_stage_that_trains_adapters_needs_no_memory_for_what_is_frozen():
    config, whole = plan_of("base")
    adapting, plan = plan_of("base", "sft.lora.rank=8")
    assert plan.memory == whole.memory, "that of pretraining"
    before, after = (
        planning.training_memory(each, SFT, ReferenceBackend()) for each in (config, adapting)
    )
    trained = sum(tensor.size for tensor in trained_table(planning.trained_form(adapting, SFT)))
    assert trained < whole.parameters / 50
    # gradients, two moments, all of these and the weights once more for a checkpoint, and the best
    assert before - after == pytest.approx(4 * 7 * (whole.parameters - trained), rel=0.05)
    assert plan.results_disk < whole.results_disk - 2 * 4 * whole.parameters


def test_the_steps_of_a_shallower_model_cost_less():
    _, whole = plan_of("base")
    _, grown = plan_of("base", "pretrain.grow_at=[4578]")  # of 9,156 steps
    assert whole.stages["pretrain"].depth == 1
    # half of the steps at half of the cost, but for the head's product
    assert grown.stages["pretrain"].depth == pytest.approx(
        0.75 + 0.25 * 2 * 768 * 4096 * 3 / 660.7e6, abs=1e-3
    )


def test_the_demo_downloads_nothing_and_has_little_text():
    _, plan = plan_of("config")
    assert plan.download == {}
    assert plan.text_bytes < plan.data_disk < 10e6


@pytest.mark.parametrize("name", ["small", "medium", "base", "large"])
def test_the_disk_that_the_readme_and_the_configuration_tell_is_what_the_plan_asks_for(name):
    _, plan = plan_of(name)
    needed = (plan.data_disk + plan.results_peak) / 1e9 + 0.6  # the environment
    (row,) = [
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if f"`config/{name}.yaml`" in line and line.startswith("|")
    ]
    told = float(re.search(r"\| about ([\d.]+) GB \|", row)[1])
    assert told == pytest.approx(needed, rel=0.05)
    first_line = Path(f"config/{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert f" {told:g} GB of disk." in first_line


def test_a_download_of_unknown_size_is_named():
    config, plan = plan_of("small")
    assert (
        "download   books 97 MB, web pages 65 MB, instructions (size not stated), "
        "preferences (size not stated)\n" in plan_text.describe(config, plan)
    )
    config["sources"]["instructions"]["alpaca"]["bytes"] = 22_773_992
    manifest = Path(planning.Paths(config).records_manifest("preferences"))
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert "download   books 97 MB, web pages 65 MB, instructions 23 MB\n" in plan_text.describe(
        config, planning.make_plan(config, ReferenceBackend())
    )


def test_the_download_of_tasks_is_counted_where_all_sizes_are_stated():
    config, plan = plan_of("base")
    assert "tasks (size not stated)" in plan_text.describe(config, plan)
    config["evaluate"]["tasks"] = [{"name": "lambada"}]
    assert planning.make_plan(config, ReferenceBackend()).download["tasks"] == 1_819_752


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [
        ([500_000] * 3, 15_000),
        ([500_000], 5_000),
        ([2_000] * 60, 4_000),
        ([100_000] * 200, 200_000),
    ],
)
def test_the_held_out_part_of_own_text_is_not_counted_as_training_text(sizes, held_out):
    Path("texts").mkdir()
    for number, size in enumerate(sizes):
        Path(f"texts/{number}.txt").write_text("x" * size)
    config, plan = plan_of("small", 'corpus.sources=["texts"]')
    assert plan.held_out_bytes == pytest.approx(held_out)
    assert plan.text_bytes == pytest.approx(sum(sizes) - held_out)
    assert f"; {log.size(held_out)} held out\n" in plan_text.describe(config, plan)


def test_all_that_is_told_begins_in_one_column():
    config, plan = plan_of("small", "sft.baseline_from_scratch=true")
    lines = plan_text.describe(config, plan).splitlines()[1:]
    assert "  sft_scratch " in [line[:14] for line in lines]
    assert {line[12:15].rfind(" ") for line in lines} == {1}


def test_what_is_there_already_is_not_downloaded_again():
    config, before = plan_of("small")
    book = Path(GUTENBERG.fetched(config, "1342"))
    book.parent.mkdir(parents=True)
    book.write_text("a book")
    _, after = plan_of("small")
    assert before.download["books"] - after.download["books"] == pytest.approx(700_000)


def test_records_that_are_prepared_count_as_they_are():
    config, before = plan_of("small")
    manifest = Path(Paths(config).records_manifest("instructions"))
    manifest.parent.mkdir(parents=True)
    manifest.with_name("train.jsonl").write_bytes(bytes(9_500_000))
    manifest.with_name("validation.jsonl").write_bytes(bytes(500_000))
    _, after = plan_of("small")
    epochs = config["sft"]["epochs"]
    assert before.stages["sft"].tokens == pytest.approx(epochs * 0.98 * 22e6 * 1.2 / 1.9, rel=0.1)
    assert after.stages["sft"].tokens == pytest.approx(epochs * 0.98 * 1e7 * 1.3 / 1.9, rel=0.01)


def test_only_the_stages_that_will_run_are_counted():
    config = load("config/small.yaml")
    assert list(planning.make_plan(config, ReferenceBackend(), ["sft"]).stages) == ["sft"]
    assert planning.make_plan(config, ReferenceBackend(), []).memory == 0


def test_alignment_is_planned_with_its_rows_of_two_contexts():
    _, with_dpo = plan_of("small")
    _, without = plan_of("small", "dpo.enabled=false")
    assert list(with_dpo.stages) == ["pretrain", "sft", "dpo"]
    assert list(without.stages) == ["pretrain", "sft"]
    assert with_dpo.stages["dpo"].tokens == pytest.approx(
        0.98 * data.RECORDS_BYTES["preferences"] / 1.9 * data.RECORD_OVERHEAD, rel=0.01
    )
    assert with_dpo.memory > without.memory


def test_rewards_are_planned_with_the_replies_of_a_group(tmp_path):
    problems = tmp_path / "problems.json"
    problems.write_bytes(bytes(300_000))
    given = [f"rl.problems={problems}", "rl.epochs=1", "rl.batch_tokens=8192"]
    two, eight = (plan_of("small", *given, f"rl.group={group}")[1] for group in (2, 8))
    assert eight.stages["rl"].tokens == pytest.approx(4 * two.stages["rl"].tokens)
    assert eight.stages["rl"].steps == pytest.approx(4 * two.stages["rl"].steps, rel=0.05)


def test_a_disk_that_is_too_small_is_named_with_the_remedy():
    free = shutil.disk_usage(".").free
    config, plan = plan_of(
        "small", f"corpus.fineweb.max_bytes_per_shard={free}", "corpus.fineweb.shards=14"
    )
    plan.data_disk = free * 2
    (sentence,) = planning.shortages(config, plan, "config/small.yaml")
    assert "free and the run needs about" in sentence
    assert "put data_dir or results_dir elsewhere" in sentence


def test_a_model_that_the_memory_does_not_hold_is_refused_with_a_smaller_one():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    layers = int(memory / (16 * 12 * 4096**2)) + 1
    config, plan = plan_of(
        "large", "model.dim=4096", "model.heads=32", f"model.layers={layers}", "model.ffn=11008"
    )
    assert plan.memory > memory
    assert any(
        "snakemake --configfile config/base.yaml" in sentence
        for sentence in planning.shortages(config, plan, "config/large.yaml")
    )


def test_a_run_of_more_than_the_hours_allowed_is_refused_with_the_lines_to_type():
    config, plan = plan_of("small")
    plan.tokens_per_second = 500.0
    for stage in plan.stages.values():
        stage.seconds = stage.tokens / plan.tokens_per_second
    (sentence,) = planning.shortages(config, plan, "config/small.yaml")
    assert "more than max_hours = 24" in sentence
    assert "snakemake --configfile config/config.yaml" in sentence
    assert "--config max_hours=" in sentence
    config["max_hours"] = None
    assert planning.shortages(config, plan, "config/small.yaml") == []


def test_the_command_prints_the_plan_of_the_demo(capsys, monkeypatch):
    monkeypatch.setattr(planned_speed.probe, "__defaults__", (0.1,))
    assert main(["plan", "--config", "config/config.yaml", "--device", "reference"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("run demo: 1,049,216 parameters on reference, about ")
    assert "pretrain    2.2 M tokens" in said


def test_a_workflow_does_not_time_a_run_of_minutes(capsys):
    command = ["plan", "--config", "config/config.yaml", "--device", "reference"]
    assert main([*command, "--unless-short"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("run demo: 1,049,216 parameters on reference\n")
    assert "3.4 epochs, 1,075 steps, minutes" in said
    assert "dpo         95,000 tokens, 1 epoch, 93 steps, minutes" in said
    config, plan = plan_of("config", "max_hours=0.5")
    assert not planning.is_short(config, plan)
    assert not planning.is_short(*plan_of("small"))


def test_the_command_fails_with_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(planned_speed.probe, "__defaults__", (0.1,))
    file = Path("config/config.yaml")
    file.write_text(file.read_text().replace("preset: small", "preset: small\n  layers: 1"))
    command = ["plan", "--config", str(file), "--device", "reference"]
    assert main([*command, "--stages", "pretrain"]) == 0
    file.write_text(file.read_text().replace("run: demo", "run: demo\nmax_hours: 0.001"))
    assert main(command) == 1
    assert capsys.readouterr().err.count("error") == 1


def test_eight_gpus_that_are_not_here_are_planned_from_measured_rates(capsys):
    assert main(["plan", "config/large.yaml", "--gpus", "8"]) == 0
    printed = capsys.readouterr().out
    assert "on 8 × NVIDIA H200, about 2," in printed
    assert "assumed    no GPU is here: one NVIDIA H200 computes 455 TFLOP/s" in printed
    assert re.search(r"pretrain +5,300.0 M tokens, .*, about 3[78]m", printed)
    assert "65,536 tokens of each step on each" in printed
    assert "\n  memory" not in printed


def test_a_run_that_is_started_again_keeps_its_first_plan(tmp_path):
    path = tmp_path / "run" / "plan.json"
    first = {"parameters": 7, "data_disk": 9.0, "results_disk": 8.0, "results_peak": 8.5}
    first |= {"memory": 1.0, "bits_per_byte": {"books": {"low": 1.0, "middle": 1.1, "high": 1.2}}}
    planning.keep_plan(
        path, first | {"stages": {"pretrain": {"seconds": 3.0}, "sft": {"seconds": 2.0}}}
    )
    left = first | {"data_disk": 0.0, "memory": 2.0, "stages": {"sft": {"seconds": 1.0}}}
    left["bits_per_byte"] = {}
    planning.keep_plan(path, left)
    kept = json.loads(path.read_text())
    assert (kept["data_disk"], kept["memory"]) == (9.0, 2.0)
    assert kept["bits_per_byte"] == first["bits_per_byte"]
    assert kept["stages"] == {"pretrain": {"seconds": 3.0}, "sft": {"seconds": 1.0}}
    planning.keep_plan(path, left | {"parameters": 8})
    assert json.loads(path.read_text()) == left | {"parameters": 8}
    path.write_text("[1]")
    with pytest.raises(UserError, match=r"plan\.json: not a plan \(.*\); delete it"):
        planning.keep_plan(path, left)


def test_the_plans_on_paper_are_what_the_command_prints(capsys):
    page = (ROOT / "docs/scaling.md").read_text()
    (config,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    larger = config.replace("524288", "4194304")
    plans = re.findall(r"```\n(run billion: .*?)```", page, re.DOTALL)
    for plan, (text, gpus) in zip(plans, [(config, 8), (config, 64), (larger, 64)], strict=True):
        Path("billion.yaml").write_text(text)
        assert main(["plan", "billion.yaml", "--gpus", str(gpus), "--device", "cpu"]) == 0
        assert capsys.readouterr().out.split() == plan.split()
