"""Which part of the flat buffers each rank updates."""

from collections.abc import Iterable

from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.spec import block_matrices, storage_elements, tensor_table
from nanoeuler.model.tensors import ALIGNMENT, Tensor


def cuts(config: ModelConfig, ranks: int) -> list[int]:
    """Where the parts of the ranks begin, and the end: `ranks` + 1 offsets, in elements.

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


def beside(matrices: Iterable[Tensor], offset: int) -> int:
    """The nearest offset to `offset` that lies in no matrix."""
    for matrix in matrices:
        if matrix.offset < offset < matrix.stop:
            return min(
                matrix.offset, round_up(matrix.stop, ALIGNMENT), key=lambda end: abs(end - offset)
            )
    return offset
