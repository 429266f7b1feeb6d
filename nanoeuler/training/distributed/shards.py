"""Which part of the flat buffers each rank updates, and in which parts gradients are summed."""

from collections.abc import Iterable
from typing import NamedTuple

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import family_of, make_blocks
from nanoeuler.model.spec import block_matrices, storage_elements, tensor_table
from nanoeuler.model.tensors import ALIGNMENT, Tensor


def cuts(config: ModelConfig, ranks: int) -> list[int]:
    """Offsets of the ranks' parts and the end: `ranks` + 1, in elements.

    The parts are about as long as each other. No matrix of a block is cut, since Muon needs it
    whole. Raises `UserError` where a rank would have none.
    """
    total, matrices = storage_elements(tensor_table(config)), block_matrices(config)
    found = [
        beside(matrices, total * rank // ranks // ALIGNMENT * ALIGNMENT) for rank in range(ranks)
    ] + [total]
    if len(set(found)) <= ranks:
        raise UserError(
            f"a model of {total:,} parameters cannot be shared by {ranks} ranks; take fewer"
        )
    return found


BUCKETS = 8
"""About as many sums of gradients are made during a backward pass: more of them would take longer
to launch, and with fewer more is left for its end."""


class Buckets(NamedTuple):
    """Which gradients are complete when, in a backward pass: slices of the flat buffer."""

    early: dict[int, list[slice]]  # by the block that the pass has just come through
    late: list[slice]  # at its end


def buckets(config: ModelConfig) -> Buckets:
    """The flat buffer cut by the order in which a backward pass completes gradients: heads and
    final norm, the blocks from the last to the first, the embeddings."""
    table = tensor_table(config)
    offsets = {tensor.name: tensor.offset for tensor in table}
    blocks = [offsets[block.tensors()[0].name] for block in make_blocks(config)]
    total = storage_elements(table)
    pending: list[slice] = []
    late: list[slice] = []
    stop = total
    if config.tied:  # the embedding is the first head, and gets its last gradient at the end
        embedding = next(each for each in table if each.name == family_of(config).EMBEDDING)
        behind = round_up(embedding.stop, ALIGNMENT)
        pending, late = [slice(behind, total)], [slice(embedding.offset, behind)]
        stop = embedding.offset
    early: dict[int, list[slice]] = {}
    for block, start in reversed(list(enumerate(blocks))):
        complete = [slice(start, stop), *pending]
        if sum(part.stop - part.start for part in complete) >= total / BUCKETS:
            early[block] = complete
            pending, stop = [], start
    late = [slice(0, stop), *pending, *late]
    return Buckets(early, [part for part in late if part.start < part.stop])


def beside(matrices: Iterable[Tensor], offset: int) -> int:
    """The nearest offset to `offset` that lies in no matrix."""
    for matrix in matrices:
        if matrix.offset < offset < matrix.stop:
            return min(
                matrix.offset, round_up(matrix.stop, ALIGNMENT), key=lambda end: abs(end - offset)
            )
    return offset
