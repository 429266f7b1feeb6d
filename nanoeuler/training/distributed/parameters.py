"""A model's parameters as the ranks of a group hold them and send them to each other."""

from collections.abc import Callable

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array
from nanoeuler.model.config import ModelConfig
from nanoeuler.training.distributed.group import Group, nothing_to_wait_for
from nanoeuler.training.distributed.shards import Buckets, buckets, cuts
from nanoeuler.training.distributed.vectors import Vectors

BEFORE_ALL = -1
"""In place of a block's number: what is read before the first one, or lies in no block."""


class SharedParameters:
    """The parameters of a model, of which each rank updates a part.

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
    ):
        """`values`: all of them, a flat float32 buffer on the host.

        `early_sums`: gradients are added up over the ranks while a backward pass is under way;
        `rounded_sums`: in bfloat16.
        """
        self.backend, self.group, self.rounded_sums = backend, group, rounded_sums
        at_the_end = Buckets({}, [slice(0, len(values))])
        self.buckets = buckets(config) if early_sums and group.size > 1 else at_the_end
        self.arriving: dict[int, Callable[[], None]] = {}
        """block index → wait for its weights"""
        self.cuts = cuts(config, group.size)
        self.part = slice(self.cuts[group.rank], self.cuts[group.rank + 1])
        whole = backend.from_host(values)
        self.read = backend.working_copy(whole) if group.size > 1 else whole
        """All parameters: for a model, and as the ranks send them."""
        sharded = self.read is not whole
        self.own = whole[self.part].copy() if sharded else whole[self.part]
        """The float32 parameters that this rank updates."""
        self.vectors = Vectors(config, backend, self.cuts, group.rank, whole) if sharded else None

    def load(self, values: np.ndarray) -> None:
        """Take over all parameters."""
        whole = self.backend.from_host(values)
        if self.vectors:
            self.own[...] = whole[self.part]
            self.backend.refresh(self.read, whole)
            self.vectors.load(whole)
        else:
            self.read[...] = whole

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
        """Wait for all weights."""
        for wait in self.arriving.values():
            wait()

    def begin_sums(self, gradients: Array, block: int) -> None:
        """Begin the sums over all ranks of the gradients that are final behind a block."""
        if parts := self.buckets.early.get(block):
            self.group.begin_reduce(gradients, self.cuts, parts, rounded=self.rounded_sums)

    def finish_sums(self, gradients: Array) -> None:
        """Wait for the sums of this rank's part of the gradients."""
        late = self.buckets.late
        self.group.begin_reduce(gradients, self.cuts, late, rounded=self.rounded_sums)
        self.group.finish_reduce()

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
