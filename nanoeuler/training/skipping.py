"""Rows that training leaves out, because the loss or the gradient of their step was not a number.

An update of such a step changes nothing, so the first remedy is to go on without its rows. When
the next steps fail, too, the weights are to blame: training goes back some steps, and goes on
without the rows since (Chowdhery et al. 2022, section 5.1). What is done depends on the step and
on the rows left out before, and never on where checkpoints happen to be. A run that was stopped
in between therefore does the same again.
"""

from dataclasses import dataclass, field

REWIND_STEPS = 100
"""Steps to go back when the weights are to blame."""
SOON = 2
"""They are when a step fails fewer than this many steps behind rows that were left out."""


@dataclass
class Skipped:
    """The rows left out so far."""

    ranges: list[list[int]] = field(default_factory=list)
    """First and last of the stream's steps that are left out, in order."""
    rewinds: int = 0
    """How often rows were left out."""

    @property
    def steps(self) -> int:
        """The number of steps whose rows are left out."""
        return sum(last - first + 1 for first, last in self.ranges)

    def rows_of(self, step: int) -> int:
        """The step of the stream whose rows update `step` takes."""
        for first, last in self.ranges:
            if step < first:
                break
            step += last - first + 1
        return step

    def leave_out(self, step: int) -> int:
        """Leave out what made update `step` fail; returns the update to go on with."""
        failed = self.rows_of(step)
        since = self.rows_of(max(0, step - SOON))
        again = any(last >= since for _, last in self.ranges)
        update = max(0, step - REWIND_STEPS) if again else step
        first = self.rows_of(update)
        self.ranges = [span for span in self.ranges if span[1] < first] + [[first, failed]]
        self.rewinds += 1
        return update
