"""The check at a stage's start: a wrong engine trains nothing, and a right one is checked once."""

import json
from dataclasses import replace

import numpy as np
import pytest

from nanoeuler.backend import make_backend
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.records import Rotation
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Pretrain
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.rope_scaling import read_rope_scaling
from nanoeuler.training.check_form import MODEL_TOLERANCE, check_form, check_small_model, small_form
from nanoeuler.training.loop import train
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.stages.pretrain import job
from nanoeuler.training.start_check import Form, check_before_training, kept_path, read_kept
from tests import models

SMALL = ModelConfig.from_dict({"preset": "small"})
ODD = ModelConfig.from_dict(
    models.ODD | {"vocab_size": 301, "layers": 3, "head_size": 10, "qk_norm": "weighted"}
)
YARN = {"type": "yarn", "factor": 4.0, "original_context": 512}
SCALED = replace(SMALL, rope_scaling=read_rope_scaling(YARN))
KINDS = replace(SMALL, qkv_bias=True, windows=(64, 0, 0), rope_layers=(1, 1, 0))
GEMMA3 = replace(
    SMALL,
    activation="geglu",
    post_norms=True,
    embedding_scale=11.3,
    qk_norm="weighted",
    windows=(64, 0),
    window_rope_theta=100.0,
    tied=True,
)
CAPPED = replace(GEMMA3, qk_norm="none", attention_cap=50.0, logit_cap=30.0, query_scalar=36.0)
LARGE = 10**9  # parameters: threads share the work of every op


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/nanoeuler"


# ---- engines with a mistake


class SwigluSign(CpuBackend):
    def linear_swiglu_backward(self, dx, weight, scale, product, out):
        super().linear_swiglu_backward(dx, weight, scale, product, out)
        product.packed_NO[:, product.up] *= -1


class LinearSign(CpuBackend):
    def linear_backward_input(self, dout, weight, dx, scale=1.0):
        super().linear_backward_input(dout, weight, dx, -scale)


class RopeOffByOne(CpuBackend):
    def linear_rope(self, x, weight, out, rotated, by):
        later = Rotation(by.positions_N + 1, tuple(map(shifted, by.table)))
        super().linear_rope(x, weight, out, rotated, later)


class RopeScaleForgotten(CpuBackend):
    def rope_table(self, positions, head_size, theta, scale=1.0, factor=1.0):
        return super().rope_table(positions, head_size, theta, 1.0, factor)


class RopeFactorForgotten(CpuBackend):
    def rope_table(self, positions, head_size, theta, scale=1.0, factor=1.0):
        return super().rope_table(positions, head_size, theta, scale)


def shifted(table):
    return np.vstack([table, table[-1:]])


class WindowOffByOne(CpuBackend):
    def window_starts(self, starts, offset, window, last, out):
        super().window_starts(starts, offset, window + 1, last, out)


class WindowForgotten(CpuBackend):
    def window_starts(self, starts, offset, window, last, out):
        out[...] = starts


class BiasForgotten(CpuBackend):
    def linear_bias(self, x, weight, bias, out):
        self.linear(x, weight, out)


class ScoreCapForgotten(CpuBackend):
    def attention(self, heads, *others):
        super().attention(heads._replace(cap=0), *others)


class LogitCapForgotten(CpuBackend):
    def soft_cap(self, x, cap, slope=None):
        if slope is not None:
            slope[...] = 1


class SlopeForgotten(CpuBackend):
    def soft_cap_backward(self, dx, slope):
        pass


class ReplicaForgotten(CpuBackend):
    def __init__(self, threads, products=None):
        super().__init__(threads, products)
        self.runtime.sum_into = lambda target, others: None


class PartComputedTwice(CpuBackend):
    """Where threads share a product."""

    def share_product(self, count, weight, rows, kernel, *arguments):
        super().share_product(count, weight, rows, kernel, *arguments)
        if self.threads > 1 and rows * weight.size // self.least_product > 1:
            kernel(self.blas.sgemm, *arguments, 0, count // 2)


class DecodedStreamWrong(CpuBackend):
    def decode_fused(self, step):
        super().decode_fused(step)
        step.x_ND[:, 0] += 1


class RareTargetsMixedUp(CpuBackend):
    def few_targets(self, targets):
        index = super().few_targets(targets)
        return None if index is None else index[::-1] * 0 + index[0]


class DecayForgotten(CpuBackend):
    def move(self, rule, flat, tensors, runs, constants, scalars):
        runs = [run._replace(decays=False) for run in runs]
        super().move(rule, flat, tensors, runs, constants, scalars)


class LossOfLargeVocabularies(CpuBackend):
    def cross_entropy_with_gradient(self, rows):
        super().cross_entropy_with_gradient(rows)
        if rows.logits_RV.shape[1] > 4096:
            rows.logits_RV[:, 4096:] = 0


class EpsilonOutsideOfTheRoot(ReferenceBackend):
    def rms_norm(self, norm):
        super().rms_norm(norm._replace(epsilon=0.0))
        x, weight, epsilon, out, inverse_rms = norm
        inverse_rms[...] = 1 / (1 / inverse_rms + epsilon)
        out[...] = x * inverse_rms[:, None] * weight


class EpsilonForgotten(ReferenceBackend):
    def rms_norm(self, norm):
        super().rms_norm(norm._replace(epsilon=0.0))


class FarScoresUnscaled(ReferenceBackend):
    """1/√E is missing from the 160th key on."""

    def attention(self, heads, starts, offset, lse):
        key = heads.key.copy()
        key[:, 160:] *= key.shape[-1] ** 0.5
        super().attention(heads._replace(key=key), starts, offset, lse)


class WeightsTakenForTheirMean(ReferenceBackend):
    def cross_entropy_with_gradient(self, rows):
        weights = rows.weights_R
        mean = np.full_like(weights, weights[weights > 0].mean())
        super().cross_entropy_with_gradient(rows._replace(weights_R=mean))


class FirstHeadsLossForgotten(ReferenceBackend):
    def add_losses(self, logprobs, weights, losses):
        super().add_losses(logprobs[:, :1], weights[:, :1], losses)


class MlpTokensMixedUp(ReferenceBackend):
    """As one that reads copies with the tokens last in another order than they were written."""

    precision = "fp8"

    def linear_backward_weight(self, dout, x, dweight, *, accumulate, scale=1):
        dout = dout[::-1] if 512 in dweight.shape else dout
        super().linear_backward_weight(dout, x, dweight, accumulate=accumulate, scale=scale)


def wrong(engine, config):
    return {row.case.split(",")[0] for row in check_form(engine, config) if not row.passed}


@pytest.mark.parametrize(
    "config",
    [SMALL, ODD, SCALED, KINDS, GEMMA3, CAPPED],
    ids=["small", "odd", "scaled positions", "layer kinds", "as Gemma 3", "as Gemma 2"],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_right_engine_passes(config, threads):
    assert wrong(CpuBackend(threads), config) == set()
    assert wrong(CpuBackend(threads).as_for(LARGE), config) == set()


@pytest.mark.parametrize(
    ("engine", "elements", "case"),
    [
        (SwigluSign(2), None, "gradients"),
        (RopeOffByOne(1), None, "gradients"),
        (ReplicaForgotten(2), None, "gradients"),
        (PartComputedTwice(2), LARGE, "gradients"),
        (DecodedStreamWrong(1), None, "decoding"),
        (RareTargetsMixedUp(1), None, "gradients"),
        (DecayForgotten(1), None, "three updates"),
    ],
)
def test_a_mistake_is_found_in_the_way_that_a_model_of_this_size_trains(engine, elements, case):
    assert case in wrong(engine.as_for(elements) if elements else engine, SMALL)


@pytest.mark.parametrize("engine", [RopeScaleForgotten(1), RopeFactorForgotten(1)])
def test_a_table_of_angles_without_the_models_scaling_is_found(engine):
    assert wrong(engine, SMALL) == set()
    assert {"gradients", "decoding"} <= wrong(engine, SCALED)


@pytest.mark.parametrize("engine", [WindowOffByOne(1), WindowForgotten(1), BiasForgotten(1)])
def test_a_window_or_a_bias_that_a_model_has_is_checked(engine):
    assert wrong(engine, SMALL) == set()
    assert {"gradients", "decoding"} <= wrong(engine, KINDS)


@pytest.mark.parametrize(
    ("engine", "cases"),
    [
        (ScoreCapForgotten(1), {"gradients", "decoding"}),
        (LogitCapForgotten(1), {"gradients", "decoding"}),
        (SlopeForgotten(1), {"gradients"}),
        (RopeFactorForgotten(1), {"gradients", "decoding"}),
    ],
)
def test_caps_and_the_scale_of_scores_are_checked(engine, cases):
    assert wrong(engine, CAPPED) == cases


def test_layers_of_every_kind_are_checked():
    form = small_form(replace(KINDS, layers=24, windows=(0,) * 20 + (64,) * 4, rope_layers=(1, 0)))
    kinds = {form.layer_kind(layer) for layer in range(form.layers)}
    assert kinds == {(0, True), (0, False), (43, True), (43, False)}


GPT2, GROUPED = {"preset": "gpt2-tiny"}, {"preset": "small", "qk_norm": "rms"}


@pytest.mark.parametrize(
    ("engine", "fields", "case"),
    [
        (EpsilonOutsideOfTheRoot, {"preset": "small"}, "gradients"),
        (EpsilonOutsideOfTheRoot, {"preset": "base", "dim": 96, "ffn": 64}, "gradients"),
        (EpsilonOutsideOfTheRoot, GROUPED, "gradients"),
        (EpsilonOutsideOfTheRoot, GPT2, "gradients"),
        (EpsilonForgotten, {"preset": "small"}, "gradients"),
        (EpsilonForgotten, GPT2, "gradients"),
        (FarScoresUnscaled, {"preset": "small"}, "decoding"),
        (FarScoresUnscaled, GPT2, "decoding"),
        (WeightsTakenForTheirMean, {"preset": "small"}, "gradients"),
        (FirstHeadsLossForgotten, {"preset": "small"}, "gradients"),
    ],
)
def test_a_constant_matters_in_the_form_even_beside_the_roundings_of_bf16(engine, fields, case):
    config = small_form(ModelConfig.from_dict(fields))
    rows = list(check_small_model(engine(np.float64), config, recompute=False))
    wrong = {row.case.split(",")[0] for row in rows if row.error > 1.5 * MODEL_TOLERANCE["bf16"]}
    assert case in wrong


@pytest.mark.parametrize("fields", [{"preset": "small", "ffn": 512}, {"preset": "gpt2-tiny"}])
def test_tokens_differ_so_much_that_mixing_them_up_shows_in_fp8(fields):
    config = small_form(ModelConfig.from_dict(fields))
    rows = check_small_model(MlpTokensMixedUp(np.float64), config, recompute=False)
    assert max(row.error for row in rows) > 1.5 * MODEL_TOLERANCE["fp8"]


def test_the_losses_are_those_of_the_whole_vocabulary():
    config = ModelConfig.from_dict({"preset": "small", "vocab_size": 5000})
    assert wrong(LossOfLargeVocabularies(1), config) == {"cross_entropy 9 × 5000"}


# ---- at a stage's start


def test_a_wrong_engine_trains_nothing_and_is_named_with_its_op(data, trainer, tmp_path):
    files = data / "tokens/manifest.json", data / "tokenizer.json", tmp_path / "pretrain"
    inputs = Inputs(trainer.config, Pretrain.read(trainer.config["pretrain"]), *files)
    with pytest.raises(UserError) as refused:
        train(job(inputs, LinearSign(2)))
    said = str(refused.value)
    assert said.startswith("pretrain: engine cpu in fp32 on ")
    assert "op 'linear 1 × 8 × 24' differs by 2.0e+00 in dx" in said
    assert not (tmp_path / "pretrain/metrics.jsonl").exists()
    assert not (tmp_path / "pretrain/model").exists()


def test_a_second_start_knows_the_result_and_says_the_same(trainer, cache):
    first = gradients_line(trainer.run())
    (kept,) = (cache / "checks").iterdir()
    written = kept.stat().st_mtime_ns
    trainer.output = trainer.output / "again"
    assert gradients_line(trainer.run()) == first
    assert "engine reference in fp32 on" in first
    assert [path.stat().st_mtime_ns for path in (cache / "checks").iterdir()] == [written]
    check = trainer.metrics()[0]["check"]
    assert (check["engine"], check["precision"]) == ("reference", "fp32")
    assert 0 < check["largest_error"] < check["limit"]


def gradients_line(said: str) -> str:
    (line,) = (line for line in said.splitlines() if line.startswith("gradients"))
    return line


@pytest.mark.parametrize(
    "form",
    [
        Form(CpuBackend(2), SMALL),
        Form(CpuBackend(1), ODD),
        Form(CpuBackend(1), SMALL, recompute=True),
    ],
)
def test_a_result_holds_for_its_engine_and_its_form_alone(form):
    checked = Form(CpuBackend(1), SMALL)
    check_before_training(checked, "pretrain")
    assert read_kept(checked) is not None
    assert read_kept(form) is None


@pytest.mark.parametrize(
    "content", ["", "null", "[]", '{"engine": 5}', '{"engine": {"passed": 1}}']
)
def test_a_damaged_result_is_found_again(content):
    form = Form(CpuBackend(1), ODD)
    path = kept_path(form)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    check_before_training(form, "pretrain")
    assert json.loads(path.read_text())["engine"]["passed"] is True


def test_a_folder_that_cannot_be_written_costs_only_time(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert check_before_training(Form(CpuBackend(1), ODD), "pretrain")["passed"] is True


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "residual"),
    [
        ("fp32", "fp32"),
        ("tf32", "fp32"),
        *((form, r) for form in ("bf16", "fp8") for r in ("bf16", "fp32")),
    ],
)
@pytest.mark.parametrize("preset", ["small", "base"])
def test_the_engine_of_a_gpu_passes_in_every_precision(precision, residual, preset):
    engine = make_backend("cuda", precision=precision, residual=residual)
    assert wrong(engine, ModelConfig.from_dict({"preset": preset})) == set()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_the_engine_of_a_gpu_passes_with_scaled_positions(precision):
    engine = make_backend("cuda", precision=precision)
    for norms in ("none", "weighted"):
        assert wrong(engine, replace(SCALED, qk_norm=norms)) == set()
    scaled = 10, 64, 1e4, np.linspace(1, 0.25, 32), 1.2
    expected = ReferenceBackend(np.float64).rope_table(*scaled)
    for found, right in zip(engine.rope_table(*scaled), expected, strict=True):
        np.testing.assert_allclose(engine.to_host(found), right, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_the_engine_of_a_gpu_passes_with_layers_of_every_kind(precision):
    engine = make_backend("cuda", precision=precision)
    for norms in ("none", "weighted"):
        assert wrong(engine, replace(KINDS, qk_norm=norms)) == set()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mistake_on_a_gpu_is_found_in_every_precision(precision, monkeypatch):
    engine = make_backend("cuda", precision=precision)
    backward = engine.swiglu_backward

    def mistaken(dout, gate, up, dgate, dup, out=None):
        backward(dout, gate, up, dgate, dup, out)
        dup *= -1

    monkeypatch.setattr(engine, "swiglu_backward", mistaken)
    assert "gradients" in wrong(engine, SMALL)
