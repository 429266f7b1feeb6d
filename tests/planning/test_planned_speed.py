"""How long stages take is told from a few steps, or from what was measured on GPUs."""

import logging
import math
from types import SimpleNamespace

import pytest

from nanoeuler import log
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import planning as plan_text
from nanoeuler.config import load
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import training_flops_per_token
from nanoeuler.planning import plan as planning
from nanoeuler.planning import speed as planned_speed
from nanoeuler.system import energy
from nanoeuler.system.energy import CPU
from tests.energy import count, zone
from tests.plans import in_an_empty_folder, plan_of  # noqa: F401 (a fixture)


class Clocked(ReferenceBackend):
    """Its own clock, in seconds: AdamW's part of an update takes 0.1, and Muon's takes 1."""

    time, first_update = 0.0, 0.1

    def move(self, *arguments):
        self.time += self.first_update if self.time == 0 else 0.1
        super().move(*arguments)

    def muon(self, *arguments):
        self.time += 1
        super().muon(*arguments)

    def monotonic(self) -> float:
        return self.time


def probed(monkeypatch, clocked: Clocked) -> planning.Plan:
    config, plan = plan_of("config", "model.layers=1", "pretrain.batch_tokens=256")
    assert config["pretrain"]["optimizer"] == "muon"
    monkeypatch.setattr(planned_speed, "time", clocked)
    planned_speed.probe(config, clocked, plan, seconds=0.3)
    return plan


def test_compiling_does_not_count_as_training(monkeypatch):
    """The first step of an engine that compiles may take a hundred times as long as the next."""
    clocked = Clocked()
    clocked.first_update = 10.0
    assert probed(monkeypatch, clocked).tokens_per_second == pytest.approx(256 / 0.1)


def test_a_gpu_is_timed_with_steps_of_pretraining_once_they_are_recorded(monkeypatch):
    """Small ones would leave parts of it idle, and the first three find out how to run fast."""

    class OnDevice(Clocked):
        device = SimpleNamespace(address=None)
        updates = 0

        def move(self, *arguments):
            self.time += 10.0 if self.updates < planned_speed.DEVICE_FIRST_STEPS else 0.0
            self.updates += 1
            super().move(*arguments)

    clocked = OnDevice()
    config, plan = plan_of("config", "model.layers=1", "pretrain.batch_tokens=2560")
    monkeypatch.setattr(planned_speed, "time", clocked)
    planned_speed.probe(config, clocked, plan, seconds=0.2)
    assert plan.tokens_per_second == pytest.approx(2560 / 0.1)
    plan.gpus = 2
    planned_speed.probe(config, clocked, plan, seconds=0.2)
    assert plan.tokens_per_second == pytest.approx(2560 / 2 / 0.1)
    plan.gpus = 1
    model = ModelConfig.from_dict(config["model"])
    a_row = model.context * training_flops_per_token(model, model.context)
    monkeypatch.setattr(planned_speed, "DEVICE_PROBE_FLOPS", 3.1 * a_row)
    planned_speed.probe(config, clocked, plan, seconds=0.2)
    assert plan.tokens_per_second == pytest.approx(3 * model.context / 0.1)


def test_what_updates_take_beyond_adamw_counts_for_each_step_of_pretraining_alone(monkeypatch):
    monkeypatch.setattr(planned_speed, "WRITING", math.inf)
    plan = probed(monkeypatch, Clocked())
    pretrain, sft = plan.stages["pretrain"], plan.stages["sft"]
    assert pretrain.updates == pytest.approx(1.0 * pretrain.tokens / 256)
    small = ModelConfig.from_dict(load("config/config.yaml", ["model.layers=1"])["model"])
    in_steps = pretrain.work(small) / plan.tokens_per_second
    assert pretrain.seconds == pytest.approx(in_steps + pretrain.updates)
    assert sft.seconds == pytest.approx(sft.work(small) / plan.tokens_per_second)


def test_a_run_that_is_too_long_is_told_without_timing_other_updates(monkeypatch, caplog):
    """And the steps are announced: those of `base` take half a minute each on a laptop."""
    config, plan = plan_of(
        "config", "model.layers=1", "pretrain.batch_tokens=256", "max_hours=0.01"
    )
    monkeypatch.setattr(planned_speed, "time", clocked := Clocked())
    clocked.first_update = 10.0
    monkeypatch.setattr(log.LOGGER, "handlers", [caplog.handler])  # whatever other tests have left
    monkeypatch.setattr(log.LOGGER, "propagate", False)
    with caplog.at_level(logging.INFO, log.LOGGER.name):
        planned_speed.probe(config, clocked, plan, seconds=0.3)
    assert planning.is_too_long(config, plan)
    assert plan.stages["pretrain"].updates == 0
    assert caplog.messages == [
        "plan  timing steps of 256 tokens on reference (AdamW)",
        "plan  step 1 took 10s",
    ]


def test_each_of_several_gpus_updates_its_part(monkeypatch):
    config, plan = plan_of("config", "model.layers=1", "pretrain.batch_tokens=512")
    monkeypatch.setattr(planned_speed, "time", clocked := Clocked())
    plan.gpus = 2
    planned_speed.probe(config, clocked, plan, seconds=0.3)
    planned_speed.share(config, plan)
    pretrain = plan.stages["pretrain"]
    assert pretrain.updates == pytest.approx(1.0 / 2 * pretrain.tokens / 512)
    assert "a step takes 600.0 ms of work" in plan.assumptions[-1]  # 100 of them in AdamW's step
    assert "about 853 tokens/s" in plan_text.describe(config, plan)


def test_measurements_on_held_out_text_take_time_too(monkeypatch):
    monkeypatch.setattr(planned_speed, "WRITING", math.inf)
    config, plan = plan_of("config", "model.mtp_heads=1", "model.mtp_weights=[1]")
    pretrain, sft, dpo = (plan.stages[name] for name in ("pretrain", "sft", "dpo"))
    held_out = plan.text_tokens * plan.held_out_bytes / plan.text_bytes
    steps = math.ceil(pretrain.tokens / config["pretrain"]["batch_tokens"])
    assert pretrain.scored == math.ceil(steps / config["pretrain"]["validate_every"]) * held_out
    share = config["sft"]["validation_share"]
    a_measurement = share / (1 - share) * sft.tokens / sft.epochs
    assert sft.scored == pytest.approx(a_measurement * round(sft.scored / a_measurement))
    assert sft.scored > a_measurement  # one before it trains
    assert dpo.scored > dpo.tokens / dpo.epochs  # its parent reads all pairs
    planned_speed.set_rate(config, plan, 1000.0)
    for stage in (pretrain, sft, dpo):
        assert stage.seconds == pytest.approx((stage.tokens + stage.scored / 3) / 1000)
    few = plan_of("config", "pretrain.validation_tokens=100")[1].stages["pretrain"]
    assert few.scored == pretrain.scored / held_out * 2 * 100  # of books and of pages


def test_writing_the_last_checkpoint_and_the_model_takes_time_too(monkeypatch):
    config, plan = plan_of("base")
    planned_speed.set_rate(config, plan, 600_000.0)
    before = {name: stage.seconds for name, stage in plan.stages.items()}
    monkeypatch.setattr(planned_speed, "WRITING", math.inf)
    planned_speed.set_rate(config, plan, 600_000.0)
    for name, stage in plan.stages.items():
        assert before[name] - stage.seconds == pytest.approx(16 * plan.parameters / 0.5e9)


def test_on_a_gpu_tuning_is_timed_in_its_own_precision_and_size(monkeypatch):
    """Which also finds the algorithms of its products before the run does."""

    class OnDevice(Clocked):
        device = SimpleNamespace(address=None)

        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def move(self, *arguments):
            clock.time += self.seconds
            super().move(*arguments)

    clock = OnDevice(0.0)
    monkeypatch.setattr(planned_speed, "time", clock)
    monkeypatch.setattr(planned_speed, "WRITING", math.inf)
    settings = ["model.layers=1", "pretrain.precision=fp8", "pretrain.batch_tokens=2560"]
    tuning = [f"{stage}.batch_tokens=1280" for stage in ("sft", "dpo", "rl")]
    config, plan = plan_of("config", *settings, *tuning, "pretrain.optimizer=adamw")
    asked = []

    def engine(stage):
        asked.append((stage.precision, stage.batch_tokens))
        return OnDevice(0.2)

    planned_speed.probe(config, OnDevice(0.1), plan, seconds=0.3)
    planned_speed.probe_tuning(config, engine, plan, seconds=0.3)
    assert asked == [("auto", 1280)]  # once for sft, sft_scratch, dpo and rl
    model = ModelConfig.from_dict(config["model"])
    for name, rate in (("pretrain", 25_600), ("sft", 6_400), ("dpo", 6_400)):
        stage = plan.stages[name]
        expected = stage.work(model) / rate + planned_speed.DEVICE_START
        assert stage.seconds == pytest.approx(expected)
    # nor has it the dropout of pretraining, which takes time
    dropped = plan_of("config", "pretrain.dropout=0.1", "pretrain.batch_tokens=1280", *tuning)
    planned_speed.probe_tuning(dropped[0], engine, plan, seconds=0.3)
    assert asked[1:] == [("auto", 1280)]


def test_energy_is_foretold_by_what_the_timed_steps_took(monkeypatch, tmp_path):
    """Of a package that takes 50 W: 5 joules in each step of a tenth of a second."""
    file = zone(tmp_path, "intel-rapl:0", "package-0")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)

    class Warm(Clocked):
        def move(self, *arguments):
            super().move(*arguments)
            count(file, round(self.time * 50e6))

    clocked = Warm()
    clocked.first_update = 10.0  # which takes more, and does not count
    config, plan = plan_of("config", "model.layers=1", "energy.grams_per_kwh=380")
    monkeypatch.setattr(planned_speed, "time", clocked)
    config["pretrain"]["optimizer"] = "adamw"
    planned_speed.probe(config, clocked, plan, seconds=0.3)
    saving = (plan.checkpoint + 4 * plan.parameters) / planned_speed.WRITING  # which takes little
    for stage in plan.stages.values():
        assert stage.joules == {CPU: pytest.approx(50 * (stage.seconds - saving))}
    hours = 50 * (plan.seconds - len(plan.stages) * saving) / 3.6e6
    (said,) = [
        line
        for line in plan_text.describe(config, plan).splitlines()
        if line.startswith("  energy")
    ]
    assert f" CPU, {hours:.3g} kWh, {380 * hours:,.3g} g of CO₂" in said
    plan.gpus = 16  # of two hosts, each with its processors
    planned_speed.share(config, plan)
    for stage in plan.stages.values():
        assert stage.joules == {CPU: pytest.approx(100 * (stage.seconds - saving))}


def test_energy_that_no_counter_shows_is_not_foretold(monkeypatch, tmp_path):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    plan = probed(monkeypatch, Clocked())
    assert "energy" not in plan_text.describe(load("config/config.yaml"), plan)


def test_gpus_wait_as_long_as_was_measured_with_two():
    batch = f"pretrain.batch_tokens={2 * 64 * 512}"
    config, plan = plan_of("base", "model.mtp_heads=4", batch)
    planned_speed.set_rate(config, plan, 64 * 512 / 0.0500)
    plan.gpus = 2
    planned_speed.share(config, plan)
    assert plan.tokens_per_second == pytest.approx(2 * 64 * 512 / 0.051, rel=0.01)


def test_gpus_share_out_what_was_measured_with_two():
    """In bf16 one GPU took 10.71 GB for `base` with one head, and each of two 10.06."""
    config, one = plan_of("base", "model.mtp_heads=1")
    two = plan_of("base", "model.mtp_heads=1")[1]
    for plan, gpus in ((one, 1), (two, 2)):
        plan.gpus = gpus
        planned_speed.set_rate(config, plan, 1e6)
        planned_speed.share(config, plan)
    assert one.gpu_memory - two.gpu_memory == pytest.approx(0.65e9, rel=0.02)
    assert two.step_traffic == pytest.approx(3 * two.parameters)  # half of 4 and of 2 bytes
    config, exact = plan_of("base", "model.mtp_heads=1", "pretrain.precision=fp32")
    exact.gpus = 2
    planned_speed.set_rate(config, exact, 1e6)
    planned_speed.share(config, exact)
    assert exact.gpu_memory == pytest.approx(12 * exact.parameters)
    config, rounded = plan_of("base", "model.mtp_heads=1", "pretrain.sums_precision=bf16")
    rounded.gpus = 2
    planned_speed.set_rate(config, rounded, 1e6)
    planned_speed.share(config, rounded)
    assert rounded.gpu_memory - two.gpu_memory == pytest.approx(2 * two.parameters)
    assert rounded.step_traffic == pytest.approx(2 * two.parameters)
