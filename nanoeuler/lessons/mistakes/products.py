"""Mistakes in products, biases and embeddings."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
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
]
