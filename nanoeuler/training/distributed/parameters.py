"""A model's parameters as the ranks of a group hold them and send them to each other."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import family_of, make_blocks
from nanoeuler.model.spec import block_matrices, storage_elements, tensor_table, trained_table
from nanoeuler.model.tensors import ALIGNMENT, Tensor
from nanoeuler.training.distributed.group import Group, nothing_to_wait_for


def cuts(config: ModelConfig, ranks: int, cells: Sequence[slice] = ()) -> list[int]:
    """Offsets of the ranks' parts of what is trained, and the end: `ranks` + 1, in elements.

    The parts are about as long as each other. No matrix of a block is cut, since Muon needs it
    whole, and none of the `cells`, if there are any. Raises `UserError` where a rank would have
    none.
    """
    total, matrices = storage_elements(trained_table(config)), block_matrices(config)
    found = [
        beside(matrices, total * rank // ranks // ALIGNMENT * ALIGNMENT) for rank in range(ranks)
    ] + [total]
    if cells:
        starts = [cell.start for cell in cells if beside(matrices, cell.start) == cell.start]
        found[:-1] = [min(starts, key=lambda start: abs(start - cut)) for cut in found[:-1]]
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
    """The flat buffer of gradients cut by the order in which a backward pass completes them: heads
    and final norm, the blocks from the last to the first, the embeddings."""
    table = trained_table(config)
    offsets = {tensor.name: tensor.offset for tensor in table}
    trained = [
        [offsets[each.name] for each in block.tensors() if each.name in offsets]
        for block in make_blocks(config)
    ]
    blocks = [(index, found[0]) for index, found in enumerate(trained) if found]
    total = storage_elements(table)
    pending: list[slice] = []
    late: list[slice] = []
    stop = total
    embedding = next((each for each in table if each.name == family_of(config).embedding), None)
    if config.tied and embedding:  # is the first head, and gets its last gradient at the end
        behind = round_up(embedding.stop, ALIGNMENT)
        pending, late = [slice(behind, total)], [slice(embedding.offset, behind)]
        stop = embedding.offset
    early: dict[int, list[slice]] = {}
    for block, start in reversed(blocks):
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


BEFORE_ALL = -1
"""In place of a block's number: what is read before the first one, or lies in no block."""


class SharedParameters:
    """The parameters that are trained, of which each rank updates a part.

    Where products read a copy in fewer bits, a rank that is not alone has float32 parameters of its
    own part alone (Rajbhandari et al. 2020, ZeRO stage 1), but for those of norms.
    """

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        group: Group,
        values: np.ndarray,
        *,
        early_sums: bool,
        rounded_sums: bool,
        cells: Sequence[slice] = (),
    ):
        """`values`: all of them, a flat float32 buffer on the host.

        `early_sums`: gradients are added up over the ranks while a backward pass is under way;
        `rounded_sums`: in bfloat16. `cells`: see `cuts`; with any, sums have one order.
        """
        self.ordered = bool(cells)
        self.backend, self.group, self.rounded_sums = backend, group, rounded_sums
        at_the_end = Buckets({}, [slice(0, storage_elements(trained_table(config)))])
        self.buckets = buckets(config) if early_sums and group.size > 1 else at_the_end
        self.arriving: dict[int, Callable[[], None]] = {}
        """block index → wait for its weights"""
        self.cuts = cuts(config, group.size, cells)
        self.part = slice(self.cuts[group.rank], self.cuts[group.rank + 1])
        whole = backend.from_host(values)
        self.read = backend.working_copy(whole) if group.size > 1 else whole
        """All of them, for a model, and as the ranks send them."""
        self.sharded = self.read is not whole
        self.own = whole[self.part].copy() if self.sharded else whole[self.part]
        """The float32 parameters that this rank updates."""
        self.vectors: Vectors | None = None  # which adapters have none of
        if self.sharded and config.lora is None:
            self.vectors = Vectors(config, backend, self.cuts, group.rank, whole)

    def load(self, values: np.ndarray) -> None:
        """Take over all of them."""
        whole = self.backend.from_host(values)
        if self.sharded:
            self.own[...] = whole[self.part]
            self.backend.refresh(self.read, whole)
        else:
            self.read[...] = whole
        if self.vectors:
            self.vectors.load(whole)

    def note_update(self) -> None:
        """Take note that `own` and, where it is a copy, this rank's part of `read` were updated."""
        if self.vectors:
            self.vectors.update(self.own)

    # ---- between the ranks; a rank that is alone has nothing to do

    def send(self) -> None:
        """Begin to send the weights of the last update to all ranks, in the order in which a
        forward pass reads them."""
        group, read = self.group, self.read
        if group.size == 1:
            return
        vectors_arrived = self.vectors.begin_gather(group) if self.vectors else nothing_to_wait_for
        late_arrived = group.begin_gather(read, self.cuts, self.buckets.late)

        def before_all() -> None:
            vectors_arrived()
            late_arrived()

        self.arriving = {BEFORE_ALL: before_all}
        for block, parts in sorted(self.buckets.early.items()):
            self.arriving[block] = group.begin_gather(read, self.cuts, parts)

    def before_blocks(self) -> None:
        """Wait for the weights that a forward pass reads before its first block."""
        if self.vectors is None or self.backend.runtime.prepares_weights:
            self.wait()  # without vectors, a norm is gathered with the block after its reader
        else:
            self.before_block(BEFORE_ALL)

    def before_block(self, block: int) -> None:
        """Wait for the weights of a block, if they are on their way."""
        if block in self.arriving:
            self.arriving[block]()

    def wait(self) -> None:
        for wait in self.arriving.values():
            wait()

    def begin_sums(self, gradients: Sequence[Array], block: int) -> None:
        """Begin the sums over all ranks of the gradients that are final behind a block.

        `gradients`: those of all lanes of this rank, or its own alone; sums go to the first.
        """
        if parts := self.buckets.early.get(block):
            self.begin_reduce(gradients, parts)

    def finish_sums(self, gradients: Sequence[Array]) -> None:
        """Wait for the sums of this rank's part of the gradients."""
        self.begin_reduce(gradients, self.buckets.late)
        self.group.finish_reduce()

    def begin_reduce(self, gradients: Sequence[Array], parts: Sequence[slice]) -> None:
        for part in parts:
            self.backend.runtime.add_neighbours([each[part] for each in gradients])
        how = {"rounded": self.rounded_sums, "ordered": self.ordered}
        self.group.begin_reduce(gradients[0], self.cuts, parts, **how)

    def whole(self, part: Array, memory: Array) -> np.ndarray:
        """A flat array of which each rank has its part: a copy of all of it, on the host.

        `memory` is overwritten. The ranks call it together.
        """
        whole = part
        if self.group.size > 1:
            whole = memory
            whole[self.part] = part
            self.group.gather(whole, self.cuts)
        host = self.backend.to_host(whole)
        return host if self.backend.device else host.copy()


class Vectors:
    """The weights and biases of norms, few as they are, of all ranks' parts.

    `vectors[name]` is a view of one.
    """

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        cuts: Sequence[int],
        rank: int,
        parameters: Array,
    ):
        """`parameters`: the flat buffer of all of them, float32, of which `rank` updates a part."""
        tensors = [tensor for tensor in tensor_table(config) if len(tensor.shape) == 1]
        offsets_V = np.concatenate([np.arange(each.offset, each.stop) for each in tensors])
        self.cuts = np.searchsorted(offsets_V, cuts).tolist()
        self.own = slice(self.cuts[rank], self.cuts[rank + 1])
        self.offsets_V = backend.from_host(offsets_V)
        self.offsets_in_part = backend.from_host(offsets_V[self.own] - cuts[rank])
        self.values_V = parameters[self.offsets_V]
        firsts = np.searchsorted(offsets_V, [each.offset for each in tensors]).tolist()
        self.views = {
            tensor.name: self.values_V[first : first + tensor.shape[0]]
            for tensor, first in zip(tensors, firsts, strict=True)
        }

    def __getitem__(self, name: str) -> Array:
        return self.views[name]

    def load(self, parameters: Array) -> None:
        """Take over those of all parameters."""
        self.values_V[...] = parameters[self.offsets_V]

    def update(self, part: Array) -> None:
        """Take over those in the rank's own part of the parameters."""
        part.take(self.offsets_in_part, out=self.values_V[self.own])

    def begin_gather(self, group: Group) -> Callable[[], None]:
        """See `Group.begin_gather`."""
        return group.begin_gather(self.values_V, self.cuts, [slice(0, len(self.values_V))])
