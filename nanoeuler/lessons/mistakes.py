"""The mistakes that people make in each op: a bank of small changes of the specification.

The tests plant each one and see that the checks catch it. `nanoeuler check --candidate` compares
what a learner's op computes with what each mistake computes, and says the sentence of the one that
computes the same.
"""

import functools
import inspect
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Mistake:
    """The specification of an op with one piece of its source replaced."""

    op: str
    function: str  # the function of the op, or a helper, that is changed
    right: str  # a piece of its source, which it has once
    wrong: str
    sentence: str  # what a learner who made it is told
    unseen: bool = False  # by a gradient check: what is computed has this derivative

    @functools.cache  # noqa: B019 the bank lives as long as the program
    def plant(self, module: ModuleType, owner: str | None) -> ModuleType:
        """A copy of `module` with this mistake in a function of its class `owner`, or its own."""
        holder = getattr(module, owner) if owner else module
        function = inspect.getsource(
            getattr(holder, self.function, None) or getattr(module, self.function)
        )
        if function.count(self.right) != 1:
            raise ValueError(f"{self.function} does not have {self.right!r} once")
        planted = function.replace(self.right, self.wrong)
        source = inspect.getsource(module).replace(function, planted)
        changed = ModuleType(module.__name__)
        exec(compile(source, f"<{self.op}: {self.sentence}>", "exec"), vars(changed))
        return changed


def of(op: str, *rows: tuple[str, str, str, str], unseen: bool = False) -> list[Mistake]:
    """Mistakes in `op`: function, right, wrong, sentence."""
    return [Mistake(op, *row, unseen) for row in rows]


MISTAKES: list[Mistake] = [
    # ---- products
    *of(
        "linear",
        (
            "linear",
            "x_NI, weight_OI.T",
            "x_NI, weight_OI.reshape(weight_OI.shape[::-1])",
            "the weight is reshaped where it must be transposed: out = x Wᵀ",
        ),
        (
            "linear_backward_input",
            "np.matmul(dout_NO, weight_OI",
            "np.matmul(-dout_NO, weight_OI",
            "the input's gradient has the wrong sign: it is + dout W",
        ),
        (
            "linear_backward_input",
            "dout_NO, weight_OI,",
            "dout_NO, weight_OI.T.reshape(weight_OI.shape),",
            "the weight is transposed: the input's gradient is dout W, without a transpose",
        ),
        (
            "linear_backward_input",
            "dx_NI *= scale",
            "dx_NI *= 1",
            "the input's gradient leaves `scale` out",
        ),
        (
            "linear_backward_weight",
            "np.matmul(dout_NO.T, x_NI)",
            "np.matmul(x_NI.T, dout_NO).reshape(dweight_OI.shape)",
            "the weight's gradient is transposed: it is doutᵀ x, of the weight's shape (out, in)",
        ),
        (
            "linear_backward_weight",
            "dweight *= scale",
            "dweight *= 1",
            "the weight's gradient leaves `scale` out",
        ),
        (
            "linear_backward_weight",
            "np.matmul(dout_NO.T, x_NI)",
            "np.matmul(dout_NO[:-1].T, x_NI[:-1])",
            "the weight's gradient leaves out the last token: it sums over all rows",
        ),
        (
            "linear_backward_weight",
            "np.matmul(dout_NO.T, x_NI)",
            "np.matmul(dout_NO.T, x_NI) / len(x_NI)",
            "the weight's gradient is a mean over tokens, and must be their sum",
        ),
        (
            "linear_backward_weight",
            "dweight, accumulate",
            "dweight, False",
            "the weight's gradient overwrites where `accumulate` asks it to add",
        ),
    ),
    *of(
        "bias",
        ("add_bias", "out_NO += bias_O", "out_NO -= bias_O", "the bias has the wrong sign"),
        (
            "bias_backward",
            "scale * np.einsum",
            "-scale * np.einsum",
            "the bias's gradient has the wrong sign",
        ),
        (
            "bias_backward",
            "scale * np.einsum",
            "np.einsum",
            "the bias's gradient leaves `scale` out",
        ),
        (
            "bias_backward",
            "dout_NO), accumulate",
            "dout_NO), False",
            "the bias's gradient overwrites where `accumulate` asks it to add",
        ),
        (
            "bias_backward",
            'np.einsum("no->o", dout_NO)',
            "dout_NO.mean(axis=0)",
            "the bias's gradient is a mean over tokens, and must be their sum",
        ),
    ),
    # ---- embeddings
    *of(
        "embedding",
        (
            "embedding_backward",
            "np.add.reduceat(dout_ND[order]",
            "np.add.reduceat(-dout_ND[order]",
            "the table's gradient has the wrong sign",
        ),
        (
            "embedding_backward",
            "np.add.reduceat(dout_ND[order]",
            "np.add.reduceat(dout_ND[::-1][order]",
            "rows of dout go to the wrong ids: row n belongs to ids[n]",
        ),
        (
            "embedding_backward",
            "dtable_VD[present] += np.add.reduceat(dout_ND[order], first, axis=0)",
            "dtable_VD[ids_N] += dout_ND",
            "of an id that occurs several times only one row counts, as with NumPy's "
            "`table[ids] += dout`; their rows must add up, as np.add.at does",
        ),
    ),
    *of(
        "embedding",
        (
            "embedding_backward",
            "if not accumulate:",
            "if True:",
            "the table's gradient overwrites where `accumulate` asks it to add",
        ),
        unseen=True,
    ),
    *of(
        "embedding_at",
        (
            "embedding_at",
            "out_ND += np.take",
            "out_ND -= np.take",
            "the positions' embedding has the wrong sign",
        ),
        (
            "embedding_at",
            "out_ND += np.take",
            "out_ND += 0 * np.take",
            "the positions' embedding is missing",
        ),
        (
            "embedding_at",
            "np.take(position_table_PD, positions_N",
            "np.take(position_table_PD, ids_N",
            "the positions' table is read at the ids, and must be at the positions",
        ),
    ),
    # ---- RMSNorm
    *of(
        "rms_norm",
        (
            "rms_norm",
            "inverse_rms_N /= x_ND.shape[1]",
            "inverse_rms_N /= 1",
            "the squares are summed where their mean is needed",
        ),
        (
            "rms_norm",
            'np.einsum("nd,nd->n", x_ND, x_ND, out=inverse_rms_N)',
            "inverse_rms_N[...] = (x_ND**2).sum() / len(x_ND)",
            "the wrong axis: the mean is over all tokens together, and each token (row) has its "
            "own",
        ),
        (
            "rms_norm",
            "inverse_rms_N += epsilon\n        np.sqrt(inverse_rms_N, out=inverse_rms_N)",
            "np.sqrt(inverse_rms_N, out=inverse_rms_N)\n        inverse_rms_N += epsilon",
            "epsilon is added behind the square root, and belongs under it",
        ),
        (
            "rms_norm",
            "np.sqrt(inverse_rms_N, out=inverse_rms_N)",
            "pass",
            "the square root is missing: x is divided by the mean square",
        ),
        (
            "rms_norm",
            "np.reciprocal(inverse_rms_N, out=inverse_rms_N)",
            "pass",
            "x is multiplied by the root mean square, and must be divided by it",
        ),
        ("rms_norm", "out_ND *= weight_D", "out_ND *= 1", "the weight is missing"),
        (
            "rms_norm",
            'np.einsum("nd,nd->n", x_ND, x_ND',
            "x_ND = x_ND - x_ND.mean(axis=1, keepdims=True)\n"
            '        np.einsum("nd,nd->n", x_ND, x_ND',
            "this is LayerNorm: RMSNorm takes no mean off",
        ),
        (
            "add_rms_norm",
            "np.multiply(delta_ND, step_size,",
            "np.multiply(delta_ND, 1.0,",
            "the Euler step leaves its step size out: x + h · delta",
        ),
        (
            "rms_norm_backward",
            "gradient -= unit",
            "gradient += unit",
            "the term u · mean(g · u) has the wrong sign: it is taken off",
        ),
        (
            "rms_norm_backward",
            "unit *= mean[:, None]",
            "unit *= 0",
            "the term u · mean(g · u) is missing: x changes its own root mean square, too",
        ),
        (
            "rms_norm_backward",
            "gradient = dout_ND * weight_D",
            "gradient = dout_ND * 1.0",
            "the weight is missing from dx: it begins with g = w · dout",
        ),
        (
            "rms_norm_backward",
            "unit *= mean[:, None]",
            "unit *= (gradient * unit).mean(axis=0)",
            "the wrong axis: mean(g · u) is over dim (axis 1), one number for each token",
        ),
        (
            "rms_norm_backward",
            "mean /= x_ND.shape[1]",
            "mean /= 1",
            "g · u is summed where its mean is needed",
        ),
        (
            "rms_norm_backward",
            "gradient *= inverse_rms_N[:, None]",
            "gradient *= 1",
            "the last division by r is missing from dx",
        ),
        (
            "rms_norm_backward",
            'np.einsum("nd,nd->d", dout_ND, unit)',
            'np.einsum("nd,nd->d", dout_ND, x_ND)',
            "the weight's gradient takes x as it is, and must take the normed x / r",
        ),
        (
            "rms_norm_backward",
            'np.einsum("nd,nd->d", dout_ND, unit)',
            "(dout_ND * unit).mean(axis=0)",
            "the weight's gradient is a mean over tokens, and must be their sum",
        ),
        (
            "rms_norm_backward",
            "gradient, add_to_dx",
            "gradient, False",
            "dx is overwritten where `add_to_dx` asks to add: the residual stream has a gradient "
            "of its own",
        ),
    ),
    *of(
        "rms_norm",
        ("rms_norm", "inverse_rms_N += epsilon", "inverse_rms_N += 0", "epsilon is missing"),
        (
            "rms_norm_backward",
            "unit), accumulate",
            "unit), False",
            "the weight's gradient overwrites where `accumulate` asks it to add",
        ),
        unseen=True,
    ),
    # ---- LayerNorm
    *of(
        "layer_norm",
        (
            "layer_norm",
            "np.subtract(x, x.mean(axis=1, keepdims=True), out=out)",
            "np.subtract(x, 0, out=out)",
            "the mean is not taken off: this is RMSNorm",
        ),
        (
            "layer_norm",
            "x.mean(axis=1, keepdims=True)",
            "x.mean(axis=0, keepdims=True)",
            "the wrong axis: the mean is over dim (axis 1), one number for each token",
        ),
        ("layer_norm", "out += bias", "out += 0", "the bias is missing"),
        (
            "add_layer_norm",
            "total_ND *= step_size",
            "total_ND += (step_size - 1) * delta_ND",
            "the step's bias is not scaled: h · (delta + bias)",
        ),
        (
            "layer_norm_backward",
            "unit = (x - x.mean(axis=1, keepdims=True))",
            "unit = (x - 0)",
            "u is x / r, and must be (x − m) / r",
        ),
        (
            "layer_norm_backward",
            "gradient -= gradient.mean(axis=1, keepdims=True)",
            "gradient -= 0",
            "the term mean(g) is missing from dx: x changes its own mean, too",
        ),
        (
            "layer_norm_backward",
            "gradient -= unit * slope[:, None]",
            "gradient += unit * slope[:, None]",
            "the term u · mean(g · u) has the wrong sign: it is taken off",
        ),
        (
            "layer_norm_backward",
            "gradient = dout_ND * weight",
            "gradient = dout_ND * 1.0",
            "the weight is missing from dx: it begins with g = w · dout",
        ),
        (
            "layer_norm_backward",
            "keepdims=True)) * inverse_rms[:, None]",
            "keepdims=True)) * inverse_rms[:, None] ** 2",
            "x − m is divided by r twice",
        ),
        (
            "layer_norm_backward",
            'store(dweight_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)\n'
            "        store(dbias_D,",
            'store(dbias_D, np.einsum("nd,nd->d", dout_ND, unit), accumulate)\n'
            "        store(dweight_D,",
            "the gradients of weight and bias are swapped",
        ),
    ),
    # ---- rotary positions
    *of(
        "rope",
        (
            "rope",
            "sin = -sin",
            "pass",
            "`inverse` is ignored: the gradient is rotated back, by the negative angle",
        ),
        (
            "rope",
            "sin = -sin",
            "sin = 0 * sin",
            "the sine is missing when `inverse` is set",
        ),
        (
            "rope",
            "first -= second * sin",
            "first += second * sin",
            "the first half has the wrong sign: it is a cos φ − b sin φ",
        ),
        (
            "rope",
            "rotated += first * sin",
            "rotated -= first * sin",
            "the second half has the wrong sign: it is b cos φ + a sin φ",
        ),
        (
            "rope",
            "rotated = second * cos\n        rotated += first * sin\n        first *= cos\n"
            "        first -= second * sin\n        second[...] = rotated",
            "first *= cos\n        first -= second * sin\n        second *= cos\n"
            "        second += first * sin",
            "the second half is made of a first half that was overwritten before; keep a copy",
        ),
        (
            "rope",
            "second[...] = rotated",
            "second[...], first[...] = first.copy(), rotated",
            "the halves are swapped",
        ),
    ),
    *of(
        "rope",
        (
            "rope",
            "if inverse:",
            "if not inverse:",
            "both halves have the wrong sign: everything is rotated the wrong way round",
        ),
        (
            "rope",
            "first, second = x_NHE[..., :half], x_NHE[..., half:]",
            "first, second = x_NHE[..., ::2], x_NHE[..., 1::2]",
            "neighbours are rotated together; here a pair is element i of the first half and "
            "element i of the second",
        ),
        (
            "rope",
            "cos, sin = table[0]",
            "positions_N = np.maximum(positions_N - 1, 0)\n        cos, sin = table[0]",
            "positions are off by one: the first token of a document has position 0",
        ),
        (
            "rope",
            "cos, sin = table[0]",
            "positions_N = np.arange(len(positions_N))\n        cos, sin = table[0]",
            "the angle is that of the row's number, and must be that of positions_N, which starts "
            "at 0 in every document",
        ),
        (
            "rope",
            "cos, sin = table[0][positions_N][:, None, :], table[1]",
            "sin, cos = table[0][positions_N][:, None, :], table[1]",
            "cosine and sine are swapped: the table is (cosines, sines)",
        ),
        (
            "rope_table",
            "np.arange(0, head_size, 2) / head_size",
            "np.arange(head_size // 2) / head_size",
            "the exponent is −i/E, and must be −2i/E: pairs are counted, not elements",
        ),
        (
            "rope_table",
            "-np.arange(0, head_size, 2)",
            "np.arange(0, head_size, 2)",
            "the exponent has the wrong sign: later pairs turn slower",
        ),
        (
            "rope_table",
            "return np.cos(angles).astype(self.dtype), np.sin(angles)",
            "return np.sin(angles).astype(self.dtype), np.cos(angles)",
            "the table's parts are swapped: cosines first, then sines",
        ),
        unseen=True,
    ),
    # ---- attention
    *of(
        "attention",
        (
            "masked_scores",
            "scores *= 1 / math.sqrt(query_GHTE.shape[-1])",
            "scores *= 1",
            "the scores are not divided by √E",
        ),
        (
            "masked_scores",
            "math.sqrt(query_GHTE.shape[-1])",
            "query_GHTE.shape[-1]",
            "the scores are divided by E, and must be by √E",
        ),
        (
            "attention",
            "scores /= total",
            "pass",
            "the exponentials are not divided by their sum",
        ),
        (
            "attention",
            "scores /= total",
            "scores /= scores.sum(axis=-2, keepdims=True)",
            "the wrong axis: the softmax is over the keys (the last axis), not over the queries",
        ),
        (
            "attention",
            "by_head((top + np.log(total))",
            "by_head((0 * top + np.log(total))",
            "lse leaves out the maximum that was taken off before the exponential",
        ),
        (
            "attention",
            "by_head((top + np.log(total))",
            "by_head((top + total)",
            "lse leaves out the logarithm",
        ),
        (
            "documents",
            "start = int(starts_T[first])",
            "start = 0",
            "a query sees keys of the document before: keys begin at `starts`",
        ),
        (
            "attention_backward",
            'dscores -= np.einsum("ghts',
            'dscores += np.einsum("ghts',
            "the term Σ p · dp has the wrong sign: it is taken off",
        ),
        (
            "attention_backward",
            'dscores -= np.einsum("ghts',
            'dscores -= 0 * np.einsum("ghts',
            "the term Σ p · dp is missing: the probabilities of a query sum to 1",
        ),
        (
            "attention_backward",
            "dscores *= probabilities",
            "dscores *= 1",
            "the factor p is missing: ds = p · (dp − Σ p · dp)",
        ),
        (
            "attention_backward",
            "dscores *= 1 / math.sqrt(query.shape[-1])",
            "dscores *= 1",
            "the division by √E is missing from the gradients of queries and keys",
        ),
        (
            "attention_backward",
            "stacked(probabilities).swapaxes(-1, -2) @ stacked(dout)",
            "probabilities[:, 0].swapaxes(-1, -2) @ dout[:, 0]",
            "dv leaves query heads out: it sums over all heads that share the key/value head",
        ),
        (
            "attention_backward",
            "stacked(dscores).swapaxes(-1, -2) @ stacked(query)",
            "dscores[:, 0].swapaxes(-1, -2) @ query[:, 0]",
            "dk leaves query heads out: it sums over all heads that share the key/value head",
        ),
        (
            "attention_backward",
            "gradients.key[row, keys] = dkey.transpose(1, 0, 2)\n"
            "            gradients.value[row, keys] = dvalue.transpose(1, 0, 2)",
            "gradients.value[row, keys] = dkey.transpose(1, 0, 2)\n"
            "            gradients.key[row, keys] = dvalue.transpose(1, 0, 2)",
            "the gradients of keys and values are swapped",
        ),
        (
            "attention_backward",
            "stacked(probabilities).swapaxes",
            "stacked(probabilities.swapaxes(-1, -2)).swapaxes",
            "the probabilities are not transposed in dv: it is pᵀ dout",
        ),
    ),
    *of(
        "attention",
        (
            "masked_scores",
            "if T > 1:",
            "if False:",
            "the causal mask is missing: a query sees the keys behind it",
        ),
        (
            "masked_scores",
            "position + 1)",
            "position + 2)",
            "the mask is off by one: a query sees the key behind its own",
        ),
        unseen=True,
    ),
    # ---- SwiGLU and GELU
    *of(
        "swiglu",
        (
            "swiglu",
            "out_NF *= gate_NF",
            "out_NF *= 1",
            "the gate is σ(gate), and must be silu(gate) = gate · σ(gate)",
        ),
        (
            "swiglu",
            "sigmoid(gate_NF, out_NF)",
            "sigmoid(up_NF, out_NF)",
            "gate and up are swapped: silu(gate) · up",
        ),
        ("swiglu", "out_NF *= up_NF", "out_NF *= 1", "the factor up is missing"),
        (
            "swiglu_backward",
            "slope = 1 - sigma",
            "slope = sigma - 1",
            "the term silu(gate) (1 − σ) has the wrong sign in dgate",
        ),
        (
            "swiglu_backward",
            "slope *= silu",
            "slope *= 0",
            "the slope of σ is missing from dgate: σ + silu(gate) (1 − σ)",
        ),
        ("swiglu_backward", "slope *= up_NF", "slope *= 1", "the factor up is missing from dgate"),
        (
            "swiglu_backward",
            "dup = dout_NF * silu",
            "dup = dout_NF * sigma",
            "dup takes σ(gate), and must take silu(gate)",
        ),
        (
            "swiglu_backward",
            "dgate_NF[...] = slope\n        dup_NF[...] = dup",
            "dgate_NF[...] = dup\n        dup_NF[...] = slope",
            "the gradients of gate and up are swapped",
        ),
    ),
    *of(
        "gelu",
        (
            "gelu",
            "sigmoid(twice_gelu_angle(x_NF), out_NF)",
            "out_NF[...] = (1 + np.vectorize(math.erf)(x_NF / math.sqrt(2))) / 2",
            "this is the form with the error function; here GELU has the form with tanh",
        ),
        (
            "gelu",
            "twice_gelu_angle(x_NF)",
            "1.702 * x_NF",
            "this is x σ(1.702 x), an approximation; here GELU has the form with tanh",
        ),
        (
            "twice_gelu_angle",
            "angle *= CUBE",
            "angle *= 0",
            "the cubic term 0.044715 x³ is missing",
        ),
        (
            "gelu_backward",
            "dx_NF[...] = slope",
            "dx_NF[...] = -slope",
            "the gradient has the wrong sign",
        ),
        (
            "gelu_backward",
            "slope *= 2 * ROOT * x_NF * (1 - sigma)",
            "slope *= 0",
            "the slope of σ is missing: σ + x σ (1 − σ) · 2u′",
        ),
        (
            "gelu_backward",
            "slope *= 3 * CUBE",
            "slope *= CUBE",
            "the derivative of x³ is 3 x²: the 3 is missing",
        ),
    ),
    # ---- losses
    *of(
        "cross_entropy",
        (
            "cross_entropy",
            "logprobs_R[targets_R < 0] = 0",
            "pass",
            "a target of −1 has no loss: its log-probability is 0",
        ),
        (
            "cross_entropy",
            "logprobs_R[targets_R < 0] = 0",
            "logprobs_R[targets_R < 0] = (logits_RV[:, -1] - lse_R)[targets_R < 0]",
            "a target of −1 is read as the last token; it has no loss: its log-probability is 0",
        ),
        (
            "cross_entropy_backward",
            "logits_RV *= weights[:, None]",
            "logits_RV *= -weights[:, None]",
            "the gradient has the wrong sign: softmax − one-hot",
        ),
        (
            "cross_entropy_backward",
            "np.maximum(targets_R, 0)] -= 1",
            "(np.maximum(targets_R, 0) + 1) % logits_RV.shape[1]] -= 1",
            "the one-hot is off by one: 1 is taken off at the target itself",
        ),
        (
            "cross_entropy_backward",
            "] -= 1",
            "] -= 0",
            "the one-hot of the target is missing: softmax − one-hot",
        ),
        (
            "cross_entropy_backward",
            "np.where(targets_R < 0, 0, weights_R)",
            "np.where(False, 0, weights_R)",
            "a row whose target is −1 must have no gradient",
        ),
        (
            "cross_entropy_backward",
            "np.maximum(targets_R, 0)] -= 1\n        logits_RV *= weights[:, None]",
            "targets_R] -= 1\n        logits_RV *= weights_R[:, None]",
            "a target of −1 is read as the last token; its row must have no gradient",
        ),
        (
            "cross_entropy_backward",
            "logits_RV *= weights[:, None]",
            "logits_RV *= (targets_R >= 0)[:, None]",
            "the rows' weights are missing",
        ),
    ),
    *of(
        "cross_entropy",
        (
            "cross_entropy",
            "top = logits_RV[part].max(axis=1)",
            "top = np.zeros(len(logits_RV[part]))",
            "the exponential of a large logit overflows: take the row's largest logit off first",
        ),
        unseen=True,
    ),
    *of(
        "loss_weights",
        (
            "loss_weights",
            "(targets_RTK >= 0) *",
            "(targets_RTK >= -1) *",
            "a target of −1 has no loss: its weight is 0",
        ),
        (
            "loss_weights",
            "importance_RT[..., None]",
            "np.ones_like(importance_RT)[..., None]",
            "the importance of the targets is left out",
        ),
        (
            "loss_weights",
            "totals_K = importance_RTK.sum(axis=(0, 1))",
            "totals_K = (targets_RTK >= 0).sum(axis=(0, 1)).astype(float)",
            "the mean divides by the number of targets, and must by the sum of their importance",
        ),
        (
            "loss_weights",
            "shares_K / max(shares_K.sum(), 1e-30)",
            "shares_K / 1",
            "a head without targets must leave its share to the others: the weights sum to 1",
        ),
        (
            "loss_weights",
            "(shares_K / np.where(totals_K > 0, totals_K, 1.0))",
            "(shares_K / max(totals_K.sum(), 1))",
            "all heads are divided by one sum; each head has a mean over its own targets",
        ),
        (
            "loss_weights",
            "mtp_weights, 0.0)",
            "1.0, 0.0)",
            "the heads' shares, mtp_weights, are left out",
        ),
    ),
    *of(
        "preference",
        (
            "preference",
            "pull = 1 - smoothing",
            "pull = -1 + smoothing + 2 * np.exp(-np.logaddexp(0, -z))",
            "the weights have the wrong sign: they raise the chosen reply",
        ),
        (
            "preference",
            "np.exp(-np.logaddexp(0, -z))",
            "np.exp(-np.logaddexp(0, z))",
            "the sigmoid is that of −z: the pull is 1 − ε − σ(z)",
        ),
        (
            "preference",
            "pull = 1 - smoothing",
            "pull = 1",
            "the smoothing ε is missing from the weights",
        ),
        (
            "preference",
            "share * scales[0] * pull",
            "scales[0] * pull",
            "the pair's share is missing from the chosen reply's weights",
        ),
        (
            "preference",
            "-share * scales[1] * pull",
            "0 * pull",
            "the rejected reply has no weights, and must be lowered",
        ),
        (
            "preference",
            "-share * scales[1] * pull",
            "share * scales[1] * pull",
            "the rejected reply's weights have the wrong sign: they lower it",
        ),
        (
            "preference",
            "share * scales[0] * pull\n            weights_RTK[row, middle:last, 0] = "
            "-share * scales[1]",
            "share * scales[1] * pull\n            weights_RTK[row, middle:last, 0] = "
            "-share * scales[0]",
            "the scales of chosen and rejected are swapped",
        ),
        (
            "preference",
            "z = chosen - rejected",
            "z = rejected - chosen",
            "chosen and rejected are swapped in z",
        ),
    ),
    *of(
        "preference",
        (
            "preference",
            "(sums - pairs.reference_RP2[row, pair])",
            "np.array(sums)",
            "the reference's log-probability is not taken off",
        ),
        (
            "preference",
            "z = chosen - rejected - margin",
            "z = chosen - rejected",
            "the margin is missing",
        ),
        unseen=True,
    ),
    # ---- optimizers
    *of(
        "adamw",
        (
            "adamw_run",
            "learning_rate / (1 - beta1**step)",
            "learning_rate / 1",
            "the bias correction of the first moment is missing: m̂ = m / (1 − β₁ᵗ)",
        ),
        (
            "adamw_run",
            "second_moment / (1 - beta2**step)",
            "second_moment / 1",
            "the bias correction of the second moment is missing: v̂ = v / (1 − β₂ᵗ)",
        ),
        ("adamw_run", "denominator += epsilon", "denominator += 0", "epsilon is missing"),
        (
            "adamw_run",
            "second_moment / (1 - beta2**step), out=gradient)\n        denominator += epsilon",
            "second_moment / (1 - beta2**step) + epsilon, out=gradient)",
            "epsilon is under the square root, and must be added behind it",
        ),
        (
            "adamw_run",
            "np.sqrt(second_moment",
            "np.positive(second_moment",
            "the square root of the second moment is missing",
        ),
        (
            "adamw_run",
            "gradient *= gradient",
            "gradient *= 1",
            "the second moment takes g, and must take g²",
        ),
        (
            "adamw_run",
            "parameters -= update",
            "parameters += update",
            "the update has the wrong sign: it goes against the gradient",
        ),
        (
            "adamw_run",
            "beta1, beta2, epsilon",
            "beta2, beta1, epsilon",
            "β₁ and β₂ are swapped",
        ),
        (
            "adamw_run",
            "gradients * gradient_scale",
            "gradients * 1.0",
            "the gradient is not multiplied by its scale, which clips its norm",
        ),
        ("adamw_run", "if run.decays:", "if False:", "the weight decay is missing"),
        (
            "adamw_run",
            "if run.decays:",
            "if True:",
            "the weight decays although `run.decays` is False",
        ),
        (
            "adamw_run",
            "1 - learning_rate * weight_decay",
            "1 - weight_decay",
            "the weight decay is not multiplied by the learning rate",
        ),
        (
            "adamw_run",
            "gradient = gradients * gradient_scale",
            "gradient = gradients * gradient_scale + weight_decay * run.decays * parameters\n"
            "        weight_decay = 0.0",
            "the weight decay is added to the gradient (Adam with L2), and must act on the "
            "parameters themselves",
        ),
        (
            "adamw_run",
            "learning_rate *= run.rate",
            "pass",
            "the learning rate is not multiplied by `run.rate`",
        ),
    ),
    *of(
        "muon",
        (
            "orthogonalize",
            "x_RK / (np.linalg.norm(x_RK) + 1e-20)",
            "x_RK / 1.0",
            "x is not divided by its norm first, so the polynomials diverge",
        ),
        ("orthogonalize", "x *= a", "x *= 1", "the factor a is missing: a X + b (X Xᵀ) X + …"),
        (
            "orthogonalize",
            "square *= c",
            "square *= 0",
            "the term c (X Xᵀ)² X is missing",
        ),
        (
            "orthogonalize",
            "square += b * gram",
            "square += c * gram",
            "b and c are confused: b is the factor of X Xᵀ, c that of its square",
        ),
        (
            "orthogonalize",
            "for a, b, c in polynomials:",
            "for a, b, c in polynomials[:1]:",
            "only the first polynomial is applied",
        ),
    ),
    # ---- text
    *of(
        "merge",
        (
            "replace",
            "symbols[2 if found else 1 :]",
            "symbols[1:]",
            "the right symbol of a pair stays behind its product: skip two symbols after a merge",
        ),
        (
            "replace",
            "if found else symbols[0])",
            "if found else symbols[-1])",
            "symbols that are not merged are kept in the wrong order",
        ),
        (
            "replace",
            "while symbols:",
            "while symbols[1:]:",
            "the last symbol is lost when it is no part of a pair",
        ),
        (
            "replace",
            "tuple(symbols[:2]) == pair",
            "tuple(symbols[:2]) == pair and product not in result",
            "only the first occurrence is merged",
        ),
        (
            "replace",
            "tuple(symbols[:2]) == pair",
            "sorted(symbols[:2]) == sorted(pair)",
            "the order within the pair is ignored: (right, left) is another pair",
        ),
    ),
    # ---- drafts
    *of(
        "keep_right",
        (
            "keep_right",
            "np.cumprod(chosen_BT[:, :-1] == drafts_BM, axis=1)",
            "(chosen_BT[:, :-1] == drafts_BM)",
            "a right draft behind a wrong one counts, and must not: it follows a wrong token",
        ),
        (
            "keep_right",
            "chosen_BT[:, :-1] == drafts_BM",
            "chosen_BT[:, 1:] == drafts_BM",
            "drafts are compared with the token behind their own: draft m is checked by chosen m",
        ),
        (
            "keep_right",
            "lengths_B += right_B + 1",
            "lengths_B += right_B",
            "lengths count the right drafts only: the token that was read before them counts, too",
        ),
        (
            "keep_right",
            "draws_B += right_B + 1",
            "draws_B += right_B",
            "draws count the right drafts only: the token chosen behind them was drawn, too",
        ),
        (
            "keep_right",
            "np.arange(T) > right_B",
            "np.arange(T) >= right_B",
            "the token chosen behind the last right draft is lost: a + 1 tokens are kept",
        ),
        (
            "keep_right",
            "np.arange(B), right_B], 0)",
            "np.arange(B), right_B - 1], 0)",
            "the next token is that chosen behind the last right draft: chosen[a], not a − 1",
        ),
        (
            "keep_right",
            "np.arange(B) * T + right_B",
            "np.arange(B) * T",
            "the hidden state is that of the first token, and must be that of the last right draft",
        ),
    ),
]
