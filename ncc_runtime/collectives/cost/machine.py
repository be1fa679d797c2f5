"""What plans are priced on: parts of the machine, the CC-cores of a stream, and known loads."""

import attrs
import numpy as np

from ncc_runtime.collectives.cost.usage import Loads
from ncc_runtime.collectives.symmetry import RepresentativeParts
from ncc_runtime.machine_model.instances import FirstParts
from ncc_runtime.machine_model.parts import Kind, Parts
from ncc_runtime.machine_model.timing import duration_ps

Groups = np.ndarray
"""(groups, members) ranks."""

LoadsKey = tuple[int, bytes, bool]
"""Groups, and whether the first instance stands for all."""


@attrs.frozen(eq=False)
class Machine:
    """What plans are priced on."""

    parts: Parts
    cc_cores: int = 1  # of a rank, that run the placeholder's stream
    known: dict[LoadsKey, Loads] | None = None  # shared by many sizes; None: by none
    symmetry: RepresentativeParts | None = None  # if the first instance stands for all
    _pace: np.ndarray = attrs.field(init=False)  # (parts,) float64, seconds for one

    @_pace.default
    def _pace_of_parts(self) -> np.ndarray:
        pace = 1 / self.vector.rates
        pace[self.vector.span(Kind.CC_CORE)] /= self.cc_cores
        return np.asarray(pace)

    def loads(self, groups: Groups) -> Loads:
        """The loads of a team, which do not depend on sizes."""
        first = None if self.symmetry is None else self.symmetry.parts
        if self.known is None:
            return Loads(self.parts, groups, first)
        key = len(groups), groups.tobytes(), first is None
        if key not in self.known:
            self.known[key] = Loads(self.parts, groups, first)
        return self.known[key]

    @property
    def vector(self) -> Parts | FirstParts:
        """The parts that amounts are of."""
        return self.parts if self.symmetry is None else self.symmetry.parts

    @property
    def row_ps(self) -> int:
        """The time of one row of a CC-core program."""
        return -(-self.parts.model.cc_instruction_ps // self.cc_cores)

    def time_ps(self, amounts: np.ndarray) -> np.ndarray:
        """What amounts take, each part alone with them."""
        times = self.vector.time_ps(amounts)
        rows = self.vector.span(Kind.CC_CORE)
        times[rows] = -(-times[rows] // self.cc_cores)
        return times

    def busiest(self, amounts: np.ndarray) -> tuple[int, Kind]:
        """The longest of these times, and the kind of its part."""
        part = int((amounts * self._pace).argmax())
        kind = self.vector.kind(part)
        time_ps = int(duration_ps(int(amounts[part]), int(self.vector.rates[part])))
        return (-(-time_ps // self.cc_cores) if kind is Kind.CC_CORE else time_ps), kind
