"""What a stage takes stands in metrics.jsonl and in its checkpoints."""

import json
import os
import shutil
import signal
import threading

from nanoeuler.cli import main
from tests.energy import Ticking
from tests.waiting import wait_until


def pretrain(trainer) -> int:
    return main(trainer.command("pretrain")[3:])


def joules(trainer) -> list[float | None]:
    return [line.get("cpu_joules") for line in trainer.metrics() if "step" in line]


def test_joules_of_all_attempts_add_up(trainer, tmp_path, monkeypatch):
    def stop() -> None:
        wait_until(lambda: trainer.last_step() >= 13)
        os.kill(os.getpid(), signal.SIGINT)

    with Ticking(tmp_path / "powercap", monkeypatch) as package:
        threading.Thread(target=stop).start()
        assert pretrain(trainer) == 128 + signal.SIGINT
        first = joules(trainer)
        (checkpoint,) = trainer.checkpoints()
        state = json.loads((checkpoint / "state.json").read_text())
        assert 0 < first[-1] <= state["cpu_joules"] <= package.taken
        assert "gpu_joules" not in state
        assert pretrain(trainer) == 0
        taken = joules(trainer)
        assert taken[: state["step"]] == first[: state["step"]]
        assert taken == sorted(taken)
        assert state["cpu_joules"] <= taken[state["step"] + 1] < taken[-1] <= package.taken
        shutil.rmtree(trainer.output / "pretrain/model")
        assert pretrain(trainer) == 0  # exports again, which is no training
        assert joules(trainer)[-1] <= taken[-1]


def test_what_an_attempt_did_not_measure_is_not_known_afterwards(trainer, tmp_path, monkeypatch):
    trainer.stop_at(13, signal.SIGTERM)  # on this machine, whatever it counts
    (checkpoint,) = trainer.checkpoints()
    state = checkpoint / "state.json"
    assert "gpu_joules" not in json.loads(state.read_text())
    if "cpu_joules" not in json.loads(state.read_text()):
        with Ticking(tmp_path / "powercap", monkeypatch):
            assert pretrain(trainer) == 0
        assert joules(trainer) == [None] * len(joules(trainer))
