"""Torus algorithms: bucket all-gathers and reduce-scatters with all dimensions busy at once.

Who carries them out, and how strands go, is as for synthesised algorithms (`relayed.py`); what is
sent when is a rule (`buckets.py`). In `pod` the dimension that joins hosts carries only what has
been joined inside them.
"""

import attrs

from ncc_runtime.collectives import buckets
from ncc_runtime.collectives.crews import Crew
from ncc_runtime.collectives.grids import Grid, grid_of
from ncc_runtime.collectives.layout import Layout, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.collectives.relayed import Relayed, larger_bytes, strands_of
from ncc_runtime.collectives.wires import wires_of


@attrs.frozen(cache_hash=True)
class Group:
    """Who is on which chip, and the grid of the chips."""

    crew: Crew
    grid: Grid


@attrs.frozen
class Bucket:
    """One kind of torus algorithm, by name."""

    name: str
    is_pod: bool = False

    def arrange(self, layout: Layout) -> Group:
        """UnsuitedError unless the chips fill a torus, for a pod of several hosts."""
        grid = grid_of(layout, wires_of(layout))
        if self.is_pod and grid.outer is None:
            raise UnsuitedError("its members are on one host")
        return Group(Crew.of(layout), grid)

    def all_gather(self, job: Job, group: Group) -> Plan:
        """Every chunk goes along the dimensions, slice by slice."""
        sends = buckets.forwards(group.grid, self.is_pod)
        strands = strands_of(larger_bytes(job) // (len(sends.owners) * group.crew.planes))
        return Relayed(self.name, group.crew).all_gather(job, sends, strands)

    def reduce_scatter(self, job: Job, group: Group) -> Plan:
        """The same backwards."""
        sends = buckets.backwards(group.grid, self.is_pod)
        strands = strands_of(larger_bytes(job) // (len(sends.owners) * group.crew.planes))
        return Relayed(self.name, group.crew).reduce_scatter(job, sends, strands)

    def all_reduce(self, job: Job, group: Group) -> Plan:
        """Both, one after the other."""
        both = (
            buckets.backwards(group.grid, self.is_pod),
            buckets.forwards(group.grid, self.is_pod),
        )
        strands = strands_of(larger_bytes(job) // (len(both[0].owners) * group.crew.planes))
        return Relayed(self.name, group.crew).all_reduce(job, both, strands)


KINDS: tuple[Bucket, ...] = (Bucket("torus"), Bucket("pod", is_pod=True))
"""Every torus algorithm."""
