"""`nanoeuler check --op` and `--candidate`: what learners write, and what they are told."""

import inspect
import textwrap
from pathlib import Path

import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.lessons import candidate as candidates
from nanoeuler.lessons.trials import TRIALS
from nanoeuler.lessons.verdict import judge

ROPE = """
    import numpy as np

    def rope(x_NHE, positions_N, table, *, inverse=False):
        half = x_NHE.shape[2] // 2
        cos, sin = (part[positions_N][:, None] for part in table)
        if inverse:
            sin = -sin
        a, b = x_NHE[..., :half].copy(), x_NHE[..., half:].copy()
        x_NHE[..., :half] = a * cos - b * sin
        x_NHE[..., half:] = b * cos + a * sin
"""
NORM = """
    import numpy as np

    def rms_norm(norm):
        x, weight, epsilon, out, inverse_rms = norm
        inverse_rms[...] = 1 / np.sqrt((x**2).mean(axis=1) + epsilon)
        out[...] = weight * x * inverse_rms[:, None]

    def rms_norm_backward(dout, norm, into):
        x, weight, _, _, inverse_rms = norm
        dx, dweight, _, add_to_dx, accumulate, _ = into
        u = x * inverse_rms[:, None]
        g = dout * weight
        dw = (dout * u).sum(axis=0)
        change = (g - u * (g * u).mean(axis=1, keepdims=True)) * inverse_rms[:, None]
        dx[...] = dx + change if add_to_dx else change
        dweight[...] = dweight + dw if accumulate else dw
"""
SWIGLU = """
    import numpy as np

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    def swiglu(gate, up, out):
        out[...] = gate * sigmoid(gate) * up

    def swiglu_backward(dout, gate, up, dgate, dup, out=None):
        s = sigmoid(gate)
        dgate[...] = dout * up * (s + gate * s * (1 - s))
        dup[...] = dout * gate * s
"""
CROSS_ENTROPY = """
    import numpy as np

    def cross_entropy(rows):
        logits, targets, logprobs, lse, _ = rows
        top = logits.max(axis=1)
        lse[...] = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        logprobs[...] = logits[np.arange(len(targets)), targets] - lse
        logprobs[targets < 0] = 0

    def cross_entropy_backward(rows):
        logits, targets, _, lse, weights = rows
        logits[...] = np.exp(logits - lse[:, None])
        logits[np.arange(len(targets)), targets] -= 1
        logits *= (weights * (targets >= 0))[:, None]
"""
MERGE = """
    def replace(symbols, pair, product):
        result, at = [], 0
        while at < len(symbols):
            if tuple(symbols[at : at + 2]) == pair:
                result.append(product)
                at += 2
            else:
                result.append(symbols[at])
                at += 1
        return result
"""
ATTENTION = """
    import numpy as np

    def attention(heads, starts, offset, lse):
        query, key, value, out, _ = heads
        B, T, H, E = query.shape
        for b in range(B):
            t, s = np.indices((T, key.shape[1]))
            t += offset[b]
            hidden = (s > t) | (s < starts[b][:, None])
            for h in range(H):
                g = h // (H // key.shape[2])
                scores = query[b, :, h] @ key[b, :, g].T / np.sqrt(E)
                scores[hidden] = -np.inf
                top = scores.max(axis=1, keepdims=True)
                p = np.exp(scores - top)
                total = p.sum(axis=1, keepdims=True)
                out[b, :, h] = p / total @ value[b, :, g]
                lse[b, h] = (top + np.log(total))[:, 0]

    def attention_backward(saved, gradients, starts, lse, rotation=None):
        B, T, H, E = saved.query.shape
        t, s = np.indices((T, T))
        gradients.key[...] = gradients.value[...] = 0
        for b in range(B):
            hidden = (s > t) | (s < starts[b][:, None])
            for h in range(H):
                g = h // (H // saved.key.shape[2])
                q, k, v = saved.query[b, :, h], saved.key[b, :, g], saved.value[b, :, g]
                dout = gradients.out[b, :, h]
                p = np.exp(np.where(hidden, -np.inf, q @ k.T / np.sqrt(E)) - lse[b, h][:, None])
                dp = dout @ v.T
                ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) / np.sqrt(E)
                gradients.query[b, :, h] = ds @ k
                gradients.key[b, :, g] += ds.T @ q
                gradients.value[b, :, g] += p.T @ dout
"""
RIGHT = {
    "attention": ATTENTION,
    "rope": ROPE,
    "rms_norm": NORM,
    "swiglu": SWIGLU,
    "cross_entropy": CROSS_ENTROPY,
    "merge": MERGE,
}


@pytest.fixture
def check(tmp_path, command):
    """check(op, source) → (exit status, standard output, standard error)."""

    def run(op, source):
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return command("check", "--op", op, "--candidate", path)

    return run


@pytest.mark.parametrize("op", RIGHT)
def test_an_op_that_is_written_otherwise_and_right_passes(check, op):
    status, out, err = check(op, RIGHT[op])
    assert status == 0, out + err
    assert "likely" not in out
    assert f"{op} agrees with the specification" in err


@pytest.mark.parametrize("op", TRIALS)
def test_the_solution_of_every_exercise_is_the_specification(op):
    trial = TRIALS[op]
    ops = trial.of(trial.module)
    holder = type(ops) if trial.owner else ops
    functions = {name: getattr(holder, name) for name in trial.functions}
    results = judge(op, candidates.Candidate(Path("mine.py"), "", functions))
    assert {result.call.function for result in results} == set(trial.functions)
    assert not any(result.fault for result in results)


@pytest.mark.parametrize(
    ("op", "right", "wrong", "told"),
    [
        ("rope", "a * cos - b * sin", "a * cos + b * sin", "the first half has the wrong sign"),
        ("rope", ".copy()", "", "a first half that was overwritten before"),
        ("rope", "[..., :half]", "[..., ::2]", None),
        ("rope", "[positions_N][:, None]", "[: len(x_NHE)][:, None]", "that of the row's number"),
        ("rope", "            sin = -sin", "            pass", "`inverse` is ignored"),
        ("rope", "x_NHE[..., half:] =", "second =", None),
        ("rms_norm", ".mean(axis=1) + epsilon", ".sum(axis=1) + epsilon", "squares are summed"),
        ("rms_norm", "weight * x *", "x *", "the weight is missing"),
        ("rms_norm", "(g - u *", "(g + u *", "the term u · mean(g · u) has the wrong sign"),
        ("rms_norm", "g = dout * weight", "g = dout", "the weight is missing from dx"),
        ("rms_norm", ".mean(axis=1, keepdims=True)) *", ".mean(axis=0)) *", "the wrong axis"),
        ("rms_norm", "dx + change if add_to_dx else change", "change", "dx is overwritten where"),
        ("rms_norm", "dx + change if add_to_dx else change", "dx + change", "is added to what was"),
        ("rms_norm", "dx[...] = dx", "dx = dx", "`into.dx_ND[...] = …` writes"),
        ("rms_norm", "out[...] = weight", "out[...] = 3 * weight", "all of it is 3 times"),
        ("rms_norm", "u = x *", "x *= 2; u = x / 2 *", "it is an input, which must stay as it is"),
        ("swiglu", "gate * sigmoid(gate) * up", "sigmoid(gate) * up", "the gate is σ(gate)"),
        ("swiglu", "gate * s * (1 - s)", "0", "the slope of σ is missing from dgate"),
        ("swiglu", "dout * gate * s", "dout * s", "dup takes σ(gate)"),
        ("cross_entropy", "logits.max(axis=1)", "0 * logits[:, 0]", "overflows"),
        ("cross_entropy", "targets] -= 1", "targets] += 1", None),
        ("cross_entropy", " * (targets >= 0)", "", "a target of −1 is read as the last token"),
        ("cross_entropy", "targets] - lse", "targets] + lse", None),
        ("attention", "g = h // (H // key.shape[2])", "g = h % 2", "takes key/value head h % G"),
        ("attention", "(s > t) |", "(s >= t) |", "a query must see its own key, too"),
        ("attention", "(s > t) |", "(s > t + 1) |", "off by one: a query sees the key behind"),
        ("attention", "t += offset[b]", "pass", "`offset` is ignored: query i of a row sits at"),
        ("attention", "(s > t) |", "", "the causal mask is missing"),
        ("attention", "(s > t) |", "(s < t) |", "the mask is mirrored"),
        ("attention", "| (s < starts[b][:, None])", "", "sees keys of the document before"),
        ("attention", ".T / np.sqrt(E)", ".T / E", "the scores are divided by E"),
        ("attention", "p.sum(axis=1, keepdims=True)", "p.sum(axis=0)", "the wrong axis: the soft"),
        ("attention", "(p * dp).sum(axis=1, keepdims=True)", "0", "the term Σ p · dp is missing"),
        ("attention", "ds.T @ q", "ds @ q", "ds is not transposed in dk"),
        ("attention", "value[b, :, g] +=", "value[b, :, g] =", "dv keeps the last query head"),
        ("merge", "at += 2", "at += 1", "stays behind its product"),
        ("merge", "return result", "result", "ends without a `return`"),
    ],
)
def test_the_likely_mistake_is_named(check, op, right, wrong, told):
    assert right in RIGHT[op]
    status, out, err = check(op, RIGHT[op].replace(right, wrong))
    assert status == 1
    assert f"{op} is wrong in " in err
    if told:
        assert f"likely: {told}" in out or told in out.partition("likely: ")[2], out
    assert " must be " in out or "not returned" in out or "shape" in out


def test_a_mask_off_by_one_has_its_hint_where_a_large_number_hides_too(check):
    wrong = ATTENTION.replace("(s > t) |", "(s >= t) |").replace("-np.inf\n", "-1e9\n")
    assert (
        "likely: the mask is off by one: a query must see its own key"
        in check("attention", wrong)[1]
    )


def test_where_it_is_wrong_is_told_by_the_letters_of_the_shape(check):
    _, out, _ = check("rope", ROPE.replace("b * cos + a", "b * cos - a"))
    assert (
        "rope(…): x_NHE wrong in 18 of 60 numbers, only where N = 1, 2, 4 and E = 3, 4, 5: "
        "[1, 0, 3] is " in out
    )


def test_a_gradient_that_fits_a_wrong_forward_pass_is_told_apart(check):
    wrong = ROPE.replace("[..., :half]", "[..., ::2]").replace("[..., half:]", "[..., 1::2]")
    _, out, _ = check("rope", wrong)
    assert "likely: neighbours are rotated together" in out
    assert "The gradient is the derivative of this forward pass" in out


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def rope(x:\n", "line 1: the file raises SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(0)\n", "line 2: the file ends the program; take the exit out"),
        ("x = 1 / 0\n", "line 1: the file raises ZeroDivisionError: division by zero"),
        ("def rpe(): pass\n", "defines no function of the op rope; define rope or rope_table"),
        (
            "def rope(x, positions):\n    pass\n",
            "line 1: rope cannot be called as rope(…) (too many positional arguments); give it "
            "the specification's parameters: x_NHE, positions_N, table",
        ),
        (
            "\ndef rope(x, positions, table, *, inverse=False):\n    x @ table[0]\n",
            "line 3: rope raises ValueError: matmul",
        ),
        (
            "def rope(x, positions, table, *, inverse=False):\n    x *= float('nan')\n",
            "rope is wrong in 2 of 2 results; mend x_NHE of rope first",
        ),
    ],
)
def test_what_cannot_be_run_is_one_sentence_with_the_line(check, source, told):
    status, out, err = check("rope", source)
    assert status == 1
    assert told in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


def test_numbers_that_are_not_finite_have_a_hint(check):
    _, out, _ = check("rope", ROPE.replace("a * cos", "a / 0"))
    assert "likely: it has numbers that are infinite or no number" in out


@pytest.mark.parametrize(
    "body", ["while True: pass", "while True:\n        try: x += 1\n        except Exception: pass"]
)
def test_a_loop_without_end_is_stopped(check, monkeypatch, body):
    monkeypatch.setattr(candidates, "SECONDS", 0.2)
    source = f"def rope(x, positions, table, *, inverse=False):\n    {body}\n"
    status, _, err = check("rope", source)
    assert status == 1
    assert "rope does not end within 0.2 seconds; look for a loop" in err
    assert "mine.py: line " in err


def test_lists_in_a_list_are_no_numbers(check):
    status, out, _ = check("merge", MERGE.replace("append(product)", "append([product])"))
    assert status == 1
    assert "replace(…): result holds object values, and must hold numbers" in out


def test_a_file_may_begin_with_a_byte_order_mark_as_some_editors_write_it(check):
    assert check("rope", f"\ufeff{textwrap.dedent(ROPE)}")[0] == 0


def test_a_print_is_mentioned_and_no_mistake(check):
    status, out, err = check("merge", MERGE.replace("result, at", "print(pair); result, at"))
    assert status == 0
    assert "(1, 2)" not in out
    assert "replace prints '(1, 2)'; take the print out" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--op", "rop"), "--op rop: there is no such op; did you mean rope?"),
        (("--candidate", "mine.py"), "--candidate needs --op; the ops are merge, embedding"),
        (("--op", "rope", "--config", "no.yaml"), "--op is checked alone; leave --config"),
        (("--op", "rope", "--candidate", "no.py"), "no.py: cannot be read (No such file or dir"),
    ],
)
def test_what_is_missing_is_told(command, arguments, told):
    status, _, err = command("check", *arguments)
    assert status == 1
    assert told in err


@pytest.mark.parametrize("op", TRIALS)
def test_what_to_write_is_printed_as_a_file_to_fill_in(command, check, op):
    status, out, _ = command("check", "--op", op)
    assert status == 0
    assert all(f"def {name}(" in out for name in TRIALS[op].functions)
    status, _, err = check(op, out)
    assert status == 1
    assert "raises NotImplementedError" in err


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("adamw", ["v̂ = v / (1 − β₂ᵗ)", "#     decays: bool", "scalars`: whether to update"]),
        ("accept_drafts", ["−2", "guessed it"]),
        ("muon", ["x ← a x + (b G + c G²) x"]),
        ("preference", ["log σ(z)", "#     scales_RP2: Array  # β, or β per token"]),
        ("rope", ["x[i + E/2]"]),
    ],
)
def test_what_to_write_has_formulas_and_the_fields_of_records(command, op, told):
    out = command("check", "--op", op)[1]
    assert all(text in out for text in told)


def test_the_specification_itself_is_a_candidate(check):
    method = textwrap.dedent(inspect.getsource(ReferenceBackend.rope))
    status, out, err = check("rope", f"from nanoeuler.backend.reference import *\n\n{method}")
    assert status == 0, out + err
