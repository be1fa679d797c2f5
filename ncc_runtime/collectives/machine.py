"""What plans are priced on: parts of the machine, the CC-cores of a stream, and known loads."""

import attrs
import numpy as np

from ncc_runtime.collectives.loads import Loads
from ncc_runtime.parts import Kind, Parts
from ncc_runtime.timing import duration_ps

Groups = np.ndarray
"""(groups, members) ranks."""


@attrs.frozen(eq=False)
class Machine:
    """What plans are priced on."""

    parts: Parts
    cc_cores: int = 1  # of a rank, that run the placeholder's stream
    known: dict[tuple[int, bytes], Loads] | None = None  # shared by many sizes; None: by none
    _pace: np.ndarray = attrs.field(init=False)  # (parts,) float64, seconds for one

    @_pace.default
    def _pace_of_parts(self) -> np.ndarray:
        pace = 1 / self.parts.rates
        pace[self.parts.span(Kind.CC_CORE)] /= self.cc_cores
        return np.asarray(pace)

    def loads(self, groups: Groups) -> Loads:
        """The loads of a team, which do not depend on sizes."""
        if self.known is None:
            return Loads(self.parts, groups)
        key = len(groups), groups.tobytes()
        if key not in self.known:
            self.known[key] = Loads(self.parts, groups)
        return self.known[key]

    @property
    def row_ps(self) -> int:
        """The time of one row of a CC-core program."""
        return -(-self.parts.model.cc_instruction_ps // self.cc_cores)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """What amounts take, each part alone with them."""
        times = self.parts.time_ps(amounts)
        rows = self.parts.span(Kind.CC_CORE)
        times[rows] = -(-times[rows] // self.cc_cores)
        return times

    def busiest(self, amounts: np.ndarray) -> tuple[int, Kind]:
        """The longest of these times, and the kind of its part."""
        part = int((amounts * self._pace).argmax())
        kind = self.parts.kind(part)
        time_ps = int(duration_ps(int(amounts[part]), int(self.parts.rates[part])))
        return (-(-time_ps // self.cc_cores) if kind is Kind.CC_CORE else time_ps), kind
