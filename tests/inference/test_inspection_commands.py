"""`nanoeuler check` and `info` as they are typed."""

import json
import re

import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.interchange.quantizing import quantize_folder
from nanoeuler.model.checks import engine_ops, model_gradients
from nanoeuler.model.checks.comparison import Comparison
from nanoeuler.system import provenance
from tests.models import model_in

# ---- check


def test_check_prints_a_row_for_every_tensor(command):
    status, out, err = command("check", "--quick")
    assert status == 0
    rows = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(rows) > 75
    assert all(line.endswith(" ok") for line in rows)
    assert len({len(line) for line in rows}) == 1  # aligned
    assert "every gradient agrees with numerical derivatives" in err
    assert "engine cpu in fp32 on " in err


def test_check_writes_the_table_of_the_engine_that_a_config_names(command, tmp_path):
    path = tmp_path / "gradients.json"
    config = json.dumps({"model": {"preset": "small", "layers": 1, "tied": True}})
    status, out, err = command("check", "--quick", "--config", config, "--output", path)
    assert (status, out) == (0, "")
    report = json.loads(path.read_text())
    assert report["passed"] is report["quick"] is True
    assert report["tolerance"] == 1e-9
    assert report["largest_error"] == max(row["error"] for row in report["rows"]) < 1e-9
    fields = {"case", "tensor", "elements", "error", "worst", "limit", "ok"}
    assert set(report["rows"][0]) == fields
    engine = report["engine"]
    assert (engine["engine"], engine["precision"], engine["passed"]) == ("cpu", "fp32", True)
    assert engine["device"] == provenance.cpu_name()
    assert engine["tensors"] == len(engine["rows"]) > 10
    assert 0 < engine["largest_error"] < engine["limit"]
    assert f"tensors={len(report['rows'])}" in err


@pytest.mark.parametrize(("options", "quick"), [((), False), (("--quick",), True)])
def test_check_is_whole_unless_told_to_be_quick(command, monkeypatch, options, quick):
    asked = []
    monkeypatch.setattr(
        model_gradients,
        "check_all",
        lambda quick: asked.append(quick) or iter([Comparison("swiglu", "up", 35, 1e-12, 1e-12)]),
    )
    config = json.dumps({"model": {"preset": "small", "layers": 1}})
    assert command("check", "--config", config, *options)[0] == 0
    assert asked == [quick]


@pytest.mark.parametrize("error", [2e-6, float("nan"), float("inf")])
def test_a_wrong_gradient_fails_the_check_and_is_still_written_down(
    command, tmp_path, monkeypatch, error
):
    rows = [
        Comparison("swiglu", "gate", 35, error, error),
        Comparison("swiglu", "up", 35, 1e-12, 1e-12),
    ]
    monkeypatch.setattr(model_gradients, "check_all", lambda quick: iter(rows))
    status, out, err = command("check", "--quick", "--output", tmp_path / "gradients.json")
    assert status == 1
    differ = "1 of 2 gradients differ from numerical derivatives by more than 1e-09"
    assert f"{differ}, most of all that of gate in 'swiglu'" in err
    assert [line.split()[0] for line in out.splitlines() if "WRONG" in line] == ["gate"]
    assert " up " not in out
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert report["passed"] is False
    assert report["engine"]["passed"] is True
    assert report["largest_error"] == (error if error < 1 else None)
    assert [row["ok"] for row in report["rows"]] == [False, True]


def test_a_wrong_engine_fails_the_check_and_is_named_with_its_op(command, tmp_path, monkeypatch):
    backward = CpuBackend.linear_backward_input

    def mistaken(engine, dout, weight, dx, scale=1.0):
        backward(engine, dout, weight, dx, -scale)

    monkeypatch.setattr(CpuBackend, "linear_backward_input", mistaken)
    status, out, err = command("check", "--quick", "--output", tmp_path / "gradients.json")
    assert status == 1
    assert "engine cpu in fp32 on" in err
    assert "op 'linear 1 × 8 × 24' differs by 2.0e+00 in dx" in err
    assert "model.layers.0.mlp.up_proj.weight" in out
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert report["passed"] is report["engine"]["passed"] is False
    assert report["largest_error"] < 1e-6


@pytest.mark.parametrize(("error", "status"), [(1e-7, 0), (1e-5, 1)])
def test_check_of_the_cpu_compares_its_ops_too(command, monkeypatch, error, status):
    row = Comparison("swiglu 1 × 8", "out", 8, error, error)
    monkeypatch.setattr(engine_ops, "check_device_ops", lambda engine: iter([row]))
    found, out, err = command("check", "--quick", "--device", "cpu")
    assert found == status
    assert "ops in fp32, beside float64 (limit 1e-06)" in out
    differ = "the results of --device cpu differ from the specification's in 1 of 1 tensors"
    assert (differ in err) == (status == 1)


def test_check_refuses_a_device_that_is_not_there(command):
    status, out, err = command("check", "--quick", "--device", "cuda")
    assert (status, out) == (1, "")
    assert "--device cuda" in err


# ---- info


def test_info_of_a_model_folder(command, base_folder):
    status, out, _ = command("info", "--model", base_folder, "--rows", "4")
    assert status == 0
    assert "57,568" in out
    assert "micro-batch of 4 rows of 96" in out


def test_info_of_a_config(command):
    status, out, _ = command("info", "--config", '{"model": {"preset": "medium"}}')
    assert status == 0
    lines = {tuple(line.split()[:2]) for line in out.splitlines()}
    assert lines >= {
        ("total", "11,010,304"),
        ("embedding", "1,048,576"),
        ("heads", "4,194,304"),
        ("weights", "44"),
        ("backend", "cpu"),
    }


def test_info_counts_scores_of_attention_for_the_reference_alone(command):
    def activations(device: str) -> str:
        _, out, _ = command(
            "info",
            "--config",
            '{"model": {"preset": "small"}}',
            "--length",
            "8192",
            "--rows",
            "1",
            "--device",
            device,
        )
        return next(line for line in out.splitlines() if "activations" in line)

    assert "279 MB" in activations("cpu")  # 34 kB a token
    assert "4.6 GB" in activations("reference")  # and 4 × 4 heads of 8,192²


def test_info_of_a_config_file(command, tmp_path):
    sources = {
        "gutenberg": {
            "collection": "one",
            "mirror": "https://example.org",
            "licence": "none",
            "books": [{"id": 1, "title": "T", "author": "A"}],
        }
    }
    config = {
        "run": "x",
        "sources": str(tmp_path / "sources.yaml"),
        "corpus": {"sources": ["gutenberg"]},
        "model": {"preset": "medium"},
    }
    config |= {
        "pretrain": {"tokens": 1000, "batch_tokens": 512, "learning_rate": 0.001},
        "sft": {"enabled": False},
    }
    (tmp_path / "sources.yaml").write_text(json.dumps(sources))  # JSON is YAML
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    status, out, err = command("info", "--config", tmp_path / "config.yaml")
    assert status == 0, err
    assert "11,010,304" in out


def test_info_counts_the_memory_of_adapters(command, tmp_path):
    given = {"model": {"preset": "small"}, "sft": {"lora": {"rank": 4}}, "dpo": {}}
    status, out, _ = command("info", "--config", json.dumps(given), "--device", "cpu", "--json")
    assert status == 0
    found = json.loads(out)
    assert "memory_of_dpo" not in found
    whole, adapting = found["memory"], found["memory_of_sft"]
    assert adapting["gradients"] < whole["gradients"] / 10
    assert adapting["moments"] == 2 * adapting["gradients"]
    assert adapting["weights"] == adapting["gradients"]
    assert adapting["frozen"] == whole["weights"]
    assert whole["frozen"] == 0
    assert adapting["activations"] > whole["activations"]
    _, out, _ = command("info", "--config", json.dumps(given), "--device", "cpu")
    assert out.count("gradients") == 2
    assert "\nmemory of sft\n" in out


def test_info_counts_codes_beneath_adapters(command, tmp_path):
    fields = {
        "dim": 64,
        "layers": 2,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 64,
        "context": 48,
        "vocab_size": 300,
    }
    folder = model_in(tmp_path / "model", fields | {"mtp_heads": 1})
    found = {}
    for scheme in ("int8", "int4", None):
        parent = tmp_path / scheme if scheme else folder
        if scheme:
            quantize_folder(folder, parent, scheme)
        given = {"model": fields, "sft": {"lora": {"rank": 4}, "init_from": str(parent)}}
        _, out, _ = command("info", "--config", json.dumps(given), "--device", "cpu", "--json")
        found[scheme] = json.loads(out)["memory_of_sft"]["frozen"]
    assert found["int4"] < found["int8"] < 0.3 * found[None]
    for scheme in ("int8", "int4"):
        _, out, _ = command("info", "--model", str(tmp_path / scheme), "--device", "cpu")
        assert re.search(rf"total +[\d,]+ +in {scheme}\n", out)


def test_info_alone_lists_the_presets_and_the_machine(command):
    status, out, _ = command("info")
    assert status == 0
    assert "1,049,216" in out
    assert "267,428,864" in out
    assert "numpy" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--config", "{}"), "there is no model section"),
        (("--config", '{"model": {"preset": "tiny"}}'), "model.preset is 'tiny'"),
        (("--model", "/nowhere"), "/nowhere: no such folder"),
        (("--rows", "0"), "--rows 0: it must be from 1 to 1,000,000"),
        (("--length", "9" * 20), f"--length {'9' * 20}: it must be from 1 to 1,000,000"),
    ],
)
def test_info_of_what_is_not_there_gets_one_sentence(command, options, words):
    status, out, err = command("info", *options)
    assert (status, out) == (1, "")
    assert words in err
