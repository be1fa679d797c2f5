"""How long a chain of steps is: latencies, and what kinds of parts were busy."""

import attrs

from ncc_runtime.parts import Kind


@attrs.frozen
class Reach:
    """A chain of steps so far; compared by its end."""

    latency_ps: int = 0
    busy: tuple[tuple[Kind, int], ...] = ()

    @property
    def end_ps(self) -> int:
        return self.latency_ps + sum(time for _, time in self.busy)

    def behind(self, other: "Reach") -> "Reach":
        """Both in turn."""
        busy = dict(self.busy)
        for kind, time in other.busy:
            busy[kind] = busy.get(kind, 0) + time
        return Reach(self.latency_ps + other.latency_ps, tuple(busy.items()))

    def later(self, latency_ps: int) -> "Reach":
        """The same so much later."""
        return attrs.evolve(self, latency_ps=self.latency_ps + latency_ps)

    def until(self, end_ps: int, kind: Kind) -> "Reach":
        """The same with a kind of part busy until then, if that is later."""
        more = end_ps - self.end_ps
        return self.behind(Reach(0, ((kind, more),))) if more > 0 else self


def last_of(*reaches: Reach) -> Reach:
    """The one that ends last, of equal ones the first."""
    return max(reaches, key=lambda reach: reach.end_ps, default=Reach())
