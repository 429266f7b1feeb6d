"""The K prediction heads: linear maps on one hidden state (Gloeckle et al. 2024).

Head k predicts the token k + 1 places ahead. The heads' weights are one packed matrix, so that all
logits are one product; a buffer of logits holds as many tokens as `PassBuffers` says.
"""

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, Norm
from nanoeuler.model.buffers import PassBuffers
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import head_rows


class Heads:
    """From the normed stream to logits, and back."""

    def __init__(self, config: ModelConfig, ops: Backend):
        self.ops, self.vocab_size, self.rows = ops, config.vocab_size, head_rows(config)
        self.cap = config.logit_cap

    def parts(self, buffers: PassBuffers, tokens: int) -> list[slice]:
        """The first `tokens` of a training pass in parts whose logits fit into their buffer."""
        size = buffers.tokens_at_once
        return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]

    def logits(self, weight: Array, buffers: PassBuffers, part: slice = slice(None)) -> Array:
        """Logits of all heads as (tokens · K, V): row n · K + k is head k at token n of `part`.

        They lie in the training buffer, which the cross-entropy overwrites with their gradient.
        """
        normed = buffers.stream.normed[part]
        logits_NV = buffers.logits[: len(normed)]
        self.ops.linear(normed, weight, logits_NV)
        if self.cap:
            self.ops.soft_cap(logits_NV, self.cap, buffers.slopes[: len(normed)])
        return self.logit_rows(buffers, len(normed))

    def logit_rows(self, buffers: PassBuffers, tokens: int | None = None) -> Array:
        """The logits in the training buffer, (tokens · K, V)."""
        return buffers.logits[:tokens].reshape(-1, self.rows)[:, : self.vocab_size]

    def first_logits(self, weight: Array, normed_ND: Array, out: Array = None) -> Array:
        """Logits of head 0, (N, V), in a new array or in `out`."""
        if out is None:
            out = self.ops.empty((len(normed_ND), self.rows), self.ops.activation)
        self.used_logits(normed_ND, weight, out)
        return out[:, : self.vocab_size]

    def further_logits(self, weight: Array, normed_ND: Array, count: int) -> Array:
        """Logits of the heads 1 … count, (N, count, V)."""
        further, N = weight[self.rows : self.rows * (1 + count)], len(normed_ND)
        out = self.ops.empty((N, len(further)), self.ops.activation)
        self.used_logits(normed_ND, further, out)
        return out.reshape(N, -1, self.rows)[:, :, : self.vocab_size]

    def used_logits(self, normed_ND: Array, weight: Array, out_NV: Array) -> None:
        """Logits of a model that is used and not trained."""
        self.ops.head_logits(normed_ND, weight, out_NV)
        if self.cap:
            self.ops.soft_cap(out_NV, self.cap)

    def next_logits(self, norm: Norm, weight: Array, out_BV: Array) -> None:
        """Logits behind the last block: the final norm and the product with a head."""
        self.ops.next_logits(norm, weight, out_BV)
        if self.cap:
            self.ops.soft_cap(out_BV, self.cap)

    def backward(
        self,
        weight: Array,
        dweight: Array | None,
        buffers: PassBuffers,
        part: slice,
        *,
        accumulate: bool,
    ) -> None:
        """From the gradient of the logits of `part` to `dweight` and `buffers.stream.dnormed`."""
        dlogits = buffers.logits[: part.stop - part.start]
        if self.rows != self.vocab_size:
            dlogits.reshape(-1, self.rows)[:, self.vocab_size :] = 0
        if self.cap:
            self.ops.soft_cap_backward(dlogits, buffers.slopes[: len(dlogits)])
        normed = buffers.stream.normed[part]
        if dweight is not None:
            self.ops.linear_backward_weight(dlogits, normed, dweight, accumulate=accumulate)
        self.ops.linear_backward_input(dlogits, weight, buffers.stream.dnormed[part])


def gather_tokens(buffers: PassBuffers, index_R: Array) -> None:
    """Move what the heads read at some tokens to the front of `normed`."""
    normed = buffers.stream.normed
    normed[: len(index_R)] = normed[index_R]


def scatter_gradients(buffers: PassBuffers, index_R: Array) -> None:
    """Move the gradients at the front of `dnormed` back to their tokens; the others' are zero."""
    dnormed = buffers.stream.dnormed
    moved = dnormed[: len(index_R)].copy()
    dnormed[...] = 0
    dnormed[index_R] = moved
