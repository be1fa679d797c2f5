"""The directed links of all instances as columns, and how listings name them."""

import attrs
import numpy as np

from ncc_runtime.topology.levels import SwitchName, Wiring


@attrs.frozen(eq=False)
class Links:
    """Directed links of all instances as read-only columns, sorted by source, then port.

    Instance by instance. Ends are chips through all instances, or switches, whose numbers go on
    after the last chip.
    """

    src: np.ndarray  # (n,) int32, chip or switch
    dst: np.ndarray  # (n,) int32, chip or switch
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    latency_ps: np.ndarray  # (n,) int64
    is_down: np.ndarray  # (n,) bool: nothing may use it
    strands: np.ndarray  # (n,) int32: links that carry it, those of a trunk one by one
    variant: np.ndarray  # (nodes,) int32: instances of one number have the same links
    port: tuple[str, ...]  # of the links of one instance: N, W, S, E or p0, p1, …
    chips: int  # of all instances
    switches: tuple[SwitchName, ...]  # of one instance

    def __len__(self) -> int:
        return len(self.src)

    def end(self, end: int) -> str:
        """A chip or switch as listings print it: `c4`, `s1`."""
        if end < self.chips:
            return f"c{end}"
        node, within = divmod(int(end) - self.chips, len(self.switches))
        number, half = self.switches[within]
        return f"s{node * (self.switches[-1][0] + 1) + number}{half}"

    def name(self, link: int) -> str:
        """The link as listings print it: `c4.E`."""
        return f"{self.end(int(self.src[link]))}.{self.port[link % len(self.port)]}"

    def step(self, link: int) -> str:
        """The link with where it leads: `c4.E>c5`."""
        return f"{self.name(link)}>{self.end(int(self.dst[link]))}"


def ends_in_all(wiring: Wiring, ends: np.ndarray, nodes: int) -> np.ndarray:
    """Ends of one instance's links, for every instance after another, read-only."""
    each = np.arange(nodes, dtype=np.int64)[:, None]
    chips, switches = wiring.chips, len(wiring.switches)
    through = np.where(
        ends < chips,
        ends + each * chips,
        ends - chips + nodes * chips + each * switches,
    )
    column = through.astype(np.int32).ravel()
    column.setflags(write=False)
    return column
