"""What a run gave, as the caller gets it."""

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.report.collectives import CollectiveRow
from ncc_runtime.verify.proof import Proof


@attrs.frozen(eq=False, repr=False)
class Run:
    """What a run gave; parts that were not asked for are empty or None."""

    outputs: list[np.ndarray]  # each [ranks, *shape]
    trace: Trace | None
    traffic: tuple[Traffic, ...]
    collectives: tuple[CollectiveRow, ...]
    proofs: tuple[Proof, ...] = ()  # what was proved before it ran
    notes: tuple[str, ...] = ()  # what was assumed

    def __repr__(self) -> str:
        time = "no clock" if self.time_us is None else f"{self.time_us} us"
        return f"<Run: {len(self.outputs)} outputs, {len(self.collectives)} collectives, {time}>"

    @property
    def time_us(self) -> float | None:
        """Predicted time until the last rank is done, in microseconds."""
        return None if self.trace is None else self.trace.time_ps / 1e6
