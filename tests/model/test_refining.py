"""A refined model computes nearly the same, and refining again and again converges."""

import itertools

import numpy as np
import pytest
from test_forward import all_logits, random_ids
from test_gradients import gradient, random_task

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.model.checks.model_gradients import TINY, random_parameters
from nanoeuler.model.config import ModelConfig, check_growth, coarsened, refined
from nanoeuler.model.files import SavedModel, load_model, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.refining import refine
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

VARIANTS = {
    "grouped heads, K = 3": {},
    "tied, QK-norm with weights, one key/value head": {
        "tied": True,
        "qk_norm": "weighted",
        "head_size": 6,
        "kv_heads": 1,
    },
}


def refinements(model, count):
    """The model, the refined one, the one that is refined twice, and so on."""
    for _ in range(count):
        yield model
        finer = refine(model.config, model.parameters)
        model = Transformer(refined(model.config), finer, model.backend)


def ratios(values):
    """By what factor the distance of neighbours falls, from each pair to the next."""
    distances = [np.linalg.norm(b - a) for a, b in itertools.pairwise(values)]
    return [a / b for a, b in itertools.pairwise(distances)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_repeated_refining_converges_with_order_one(make_model, make_batch, variant):
    """y(h) = y(0) + C·h + O(h²): neighbours come twice as near each time.

    2·y(h/2) − y(h) has lost the term in h, so its neighbours come four times as near. The weights
    are wide (0.4), so that this begins at steps of about 1/256 only.
    """
    model, batch = make_model(step_size=1 / 128, **VARIANTS[variant]), make_batch(random_ids(2, 7))
    outputs = [
        all_logits(finer, finer.forward(batch, training=True)).copy()
        for finer in refinements(model, 6)
    ]
    *_, second_last, last = ratios(outputs)
    assert last == pytest.approx(2, abs=0.05)
    assert abs(last - 2) < 0.7 * abs(second_last - 2), "what is left falls with h, too"
    without = [2 * b - a for a, b in itertools.pairwise(outputs)]
    assert ratios(without)[-1] == pytest.approx(4, abs=0.3)


def test_each_copy_of_a_tensor_has_half_of_its_gradient(make_model):
    """The second copies of the outputs of the first layer are no copies: they begin at zero."""
    model, errors = make_model(step_size=1 / 32), []
    task = random_task(model.config, 2, 7)
    for finer in refinements(model, 5):
        half = refine(finer.config, gradient(finer, *task), power=1)
        _, finest = refinements(finer, 2)
        found = gradient(finest, *task)
        named = FlatBuffer(finest.config, found - half)
        for part in first_layer_copies():
            named[part][...] = 0
        errors.append(np.linalg.norm(named.array) / np.linalg.norm(half))
    assert errors[-1] < 0.02
    assert errors[-2] / errors[-1] == pytest.approx(2, abs=0.2), "order one"


def first_layer_copies():
    """The tensors of the layer that the first layer's second copy becomes."""
    config = refined(ModelConfig.from_dict(TINY))
    names = (tensor.name for tensor in tensor_table(config))
    return [name for name in names if name.startswith("model.layers.1.")]


def test_a_refined_model_has_each_layer_twice_and_the_first_whole():
    config = ModelConfig.from_dict(TINY)
    parameters = random_parameters(config, np.random.default_rng(1))
    before, finer = FlatBuffer(config, parameters), refined(config)
    after = FlatBuffer(finer, refine(config, parameters))
    assert (finer.layers, finer.step_size) == (4, 0.5)
    assert coarsened(finer, 1) == config
    for tensor in before.table:
        head, layer, part = tensor.name.partition("layers.")
        if not layer:
            np.testing.assert_array_equal(after[tensor.name], before[tensor.name])
            continue
        number, _, part = part.partition(".")
        is_output = part in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
        shares = (2, 0) if is_output and number == "0" else (1, 1)
        for copy, share in enumerate(shares):
            name = f"{head}layers.{2 * int(number) + copy}.{part}"
            np.testing.assert_array_equal(after[name], share * before[tensor.name])


def test_the_first_layer_keeps_every_bit(make_model, make_batch):
    """A trained first layer adds many times the length of the embedding: no small step."""
    model, batch = make_model(dtype=np.float32, layers=1), make_batch(random_ids(2, 7))
    once, twice = (
        all_logits(finer, finer.forward(batch, training=True)).copy()
        for finer in refinements(model, 2)
    )
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize(
    ("layers", "grow_at", "problem"),
    [
        (6, [3, 5], r"pretrain.grow_at is \[3, 5\], but model.layers = 6 is no multiple of 4"),
        (8, [5, 10], r"pretrain.grow_at is \[5, 10\], but training has 10 steps"),
    ],
)
def test_growth_that_cannot_end_with_the_model_is_refused(layers, grow_at, problem):
    config = ModelConfig.from_dict(TINY | {"layers": layers})
    check_growth(config, grow_at[:1], 10)
    with pytest.raises(UserError, match=problem):
        check_growth(config, grow_at, 10)


def test_the_command_writes_a_deeper_model_folder(tmp_path, capsys):
    Tokenizer(build([])).save(tmp_path / "tokenizer.json")
    config = ModelConfig.from_dict(TINY)
    parameters, licence = initial_parameters(config, 1), {"licence": "MIT"}
    model = SavedModel(config, parameters, tmp_path / "tokenizer.json", "sft", "alpaca", licence)
    save_model(tmp_path / "model", model)
    output = tmp_path / "deeper"
    assert main(["refine", str(tmp_path / "model"), "--output", str(output)]) == 0
    assert "model.layers: 4, model.step_size: 0.5" in capsys.readouterr().err
    deeper = load_model(output)
    assert deeper.config == refined(config)
    np.testing.assert_array_equal(deeper.parameters, refine(config, parameters))
    assert (deeper.stage, deeper.template, deeper.info["licence"]) == ("sft", "alpaca", "MIT")
    assert main(["refine", str(output), "--output", f"{tmp_path}/x/../deeper"]) == 1
    assert "the model itself lies there" in capsys.readouterr().err
    assert load_model(output).config == refined(config)
    (tmp_path / "loop").symlink_to("loop")
    for paths in (("loop", "new"), ("model", "loop"), ("model", "loop/in")):
        model_folder, target = (str(tmp_path / path) for path in paths)
        assert main(["refine", model_folder, "--output", target]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error  ")
        assert "loop" in line
