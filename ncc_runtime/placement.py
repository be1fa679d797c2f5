"""Placement: which logical core of which chip of which instance each rank runs on.

Ranks are divided equally over the instances, in order. Inside an instance `linear` takes
consecutive cores and `spread` gives every chip one rank before any gets a second. A JSON file lists
the ranks: `{"ranks": [[node, chip, core], …]}`, chip and core counted from 0 inside the node
and the chip.
"""

import difflib
import functools
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import PlacementError, reason_of
from ncc_runtime.input_files import MOST_JSON_BYTES, FileRole, json_of, read_file, recognised
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.fault_names import MOST_NAMED, NamedFault
from ncc_runtime.topology.format.load import load_spec, spec_of, users_file
from ncc_runtime.topology.format.spec import Spec
from ncc_runtime.topology.format.toml_file import TomlFile
from ncc_runtime.topology.graph import Topology, build_spec

STRATEGIES = ("linear", "spread")


@attrs.frozen(eq=False, repr=False)
class Placement:
    """Where each rank runs, as read-only columns by rank."""

    topology: Topology
    strategy: str
    node: np.ndarray  # (ranks,) int32
    chip: np.ndarray  # (ranks,) int32, through all instances
    core: np.ndarray  # (ranks,) int32, logical core on the chip

    def __repr__(self) -> str:
        return f"<Placement: {self.ranks} ranks, {self.strategy}, on {self.topology!r}>"

    @property
    def ranks(self) -> int:
        """Number of placed ranks."""
        return len(self.node)

    @property
    def where(self) -> str:
        """`1 x trn2.48xlarge, lnc 2, linear`, and what is down or slow there."""
        topology = self.topology
        text = f"{topology.nodes} x {topology.name}, lnc {topology.lnc}, {self.strategy}"
        faults = [
            f"{fault.name}{' of each' * (fault.node is None and topology.nodes > 1)} {fault.state}"
            for fault in topology.active_faults
        ]
        more = [f"{len(faults) - MOST_NAMED} more faults"] * (len(faults) > MOST_NAMED)
        return "; ".join([text, *faults[:MOST_NAMED], *more])

    def as_json(self) -> dict[str, Any]:
        """The same as keys of an object."""
        return {
            "topology": self.topology.name,
            "nodes": self.topology.nodes,
            "lnc": self.topology.lnc,
            "placement": self.strategy,
            "faults": [fault.as_json() for fault in self.topology.active_faults],
        }

    @property
    def healthy(self) -> "Placement":
        """The same ranks on the same cores, with nothing down or slow."""
        return attrs.evolve(self, topology=self.topology.healthy)

    @property
    def places(self) -> np.ndarray:
        """Rows (node, chip inside the node, core), (ranks, 3) int32."""
        return np.stack([self.node, self.chip_in_node, self.core], axis=1)

    @functools.cached_property
    def chip_in_node(self) -> np.ndarray:
        """The chip's number inside its instance, (ranks,) int32."""
        return _read_only(self.chip - self.node * np.int32(self.topology.chips_per_node))

    @functools.cached_property
    def logical_core(self) -> np.ndarray:
        """Neuron's core id inside the instance: ranks_per_chip * chip + core, (ranks,) int32."""
        first = self.chip_in_node * np.int32(self.topology.ranks_per_chip)
        return _read_only(first + self.core)


def _read_only(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column


@attrs.frozen
class PlaceOptions:
    """Where to place; the same options on every command."""

    topology: str = "trn2.48xlarge"
    nodes: int | None = None  # as many as the ranks need
    placement: str = "linear"
    lnc: int | None = None  # the generation's default
    faults: tuple[NamedFault, ...] = ()  # on top of those of the topology


def parse_on(text: str) -> PlaceOptions:
    """Read `trn2.48xlarge,nodes=2,placement=spread,lnc=1`; only the topology is required.

    `down=c0-c1` and `slow=c5.core0=50%` may come several times. `policy=`, `algorithm=`
    and `deterministic` are the commands'.
    """
    topology, *settings = (part.strip() for part in text.split(","))
    if not topology or "=" in topology:
        raise PlacementError(
            f"{text!r} does not begin with a topology, as in trn2.48xlarge,nodes=2"
        )
    values: dict[str, str] = {}
    faults: list[NamedFault] = []
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if key in ("down", "slow") and value:
            faults.append(fault_names.down(value) if key == "down" else fault_names.slow(value))
            continue
        if key not in ("nodes", "placement", "lnc") or not equals or not value:
            known = (
                "nodes=N, placement=P, lnc=N, down=LINK, slow=NAME=50%, policy=P, "
                "algorithm=OP=NAME, deterministic"
            )
            raise PlacementError(f"{setting!r} is none of {known}")
        if key in values:
            raise PlacementError(f"{key} is given twice: {values[key]} and {value}")
        values[key] = value
    return PlaceOptions(
        topology=topology,
        nodes=_number("nodes", values.get("nodes")),
        placement=values.get("placement", "linear"),
        lnc=_number("lnc", values.get("lnc")),
        faults=tuple(faults),
    )


def check_is_known(word: str) -> None:
    """PlacementError if it is neither a strategy nor a file that exists."""
    if word in STRATEGIES:
        return
    try:
        Path(word).stat()
    except (FileNotFoundError, ValueError) as error:
        near = difflib.get_close_matches(word, STRATEGIES, n=1)
        hint = f"; did you mean {near[0]}" if near else ""
        raise PlacementError(
            f"placement {word!r} is not linear, spread or a file that exists{hint}"
        ) from error
    except OSError:
        return  # the error comes from reading it


Places = tuple[tuple[int, ...], ...]
"""By rank: node, chip inside the node, core."""


@attrs.frozen
class PlaceFiles:
    """The files that placement options name, read; None where they name no file.

    With them a process places that has no such files.
    """

    topology: TomlFile | None = None
    placement: Places | None = None


def read_place_files(options: PlaceOptions) -> PlaceFiles:
    """TopologyError and PlacementError for names of neither kind, and for broken files."""
    is_file = options.placement not in STRATEGIES
    places = tuple(_rows(options.placement)) if is_file else None
    return PlaceFiles(users_file(options.topology), places)


def place_on(options: PlaceOptions, ranks: int, files: PlaceFiles | None = None) -> Placement:
    """Build the topology that the options and the ranks ask for, and place the ranks on it.

    `files` are those that the options name; they are read if they are not given.
    """
    files = files or read_place_files(options)
    named = files.topology
    spec = load_spec(options.topology) if named is None else spec_of(named)
    nodes, places = options.nodes, files.placement
    if nodes is None and places is None:
        nodes = _nodes_needed(spec, ranks, options.lnc)
    elif nodes is None:
        nodes = 1 + max((row[0] for row in places or ()), default=0)
    topology = build_spec(spec, nodes, options.lnc, options.faults)
    if places is not None:
        return _place_by_rows(topology, ranks, options.placement, places)
    return place(topology, ranks, options.placement)


def nodes_needed(instance: str, ranks: int, lnc: int | None = None) -> int:
    """The fewest instances that hold the ranks; PlacementError if they cannot be joined."""
    return _nodes_needed(load_spec(instance), ranks, lnc)


def _nodes_needed(spec: Spec, ranks: int, lnc: int | None) -> int:
    _check_ranks(ranks)
    topology = build_spec(spec, lnc=lnc)
    if topology.efa is None:
        _check_fit(topology, ranks)
    return -(-ranks // topology.ranks_per_node)


def place(topology: Topology, ranks: int, strategy: str = "linear") -> Placement:
    """Place ranks 0..ranks-1; the strategy is linear, spread or a JSON file."""
    _check_ranks(ranks)
    if strategy not in STRATEGIES:
        return _place_by_rows(topology, ranks, strategy, tuple(_rows(strategy)))
    _check_fit(topology, ranks)
    _check_division(topology, ranks)
    node, within = np.divmod(np.arange(ranks), ranks // topology.nodes)
    if strategy == "linear":
        chip, core = np.divmod(within, topology.ranks_per_chip)
    else:
        core, chip = np.divmod(within, topology.chips_per_node)
    return placed_at(topology, strategy, np.stack([node, chip, core], axis=1))


def placed_at(topology: Topology, strategy: str, places: np.ndarray) -> Placement:
    """From rows (node, chip inside the node, core); `strategy` is what outputs call it."""
    places = places.astype(np.int32)
    node, core = places[:, 0].copy(), places[:, 2].copy()
    chip = node * np.int32(topology.chips_per_node) + places[:, 1]
    for column in (node, chip, core):
        column.setflags(write=False)
    return Placement(topology, strategy, node, chip, core)


def _check_ranks(ranks: int) -> None:
    if ranks < 1:
        raise PlacementError(f"{ranks} ranks cannot be placed, must be at least 1")


def _check_fit(topology: Topology, ranks: int) -> None:
    if ranks <= topology.max_ranks:
        return
    lnc = f" at lnc {topology.lnc}" if topology.lnc > 1 else ""
    remedies = []
    if topology.efa is not None:
        remedies.append(f"{-(-ranks // topology.ranks_per_node)} instances would hold them")
    allowed = topology.figures["lnc.allowed"].value
    allows_lnc_1 = isinstance(allowed, tuple) and 1 in allowed
    if topology.lnc > 1 and allows_lnc_1 and ranks <= topology.max_ranks * topology.lnc:
        remedies.append("lnc 1 would hold them")
    if topology.efa is None:
        source = topology.figures["efa.adapters"].source
        remedies.append(f"without EFA it cannot be joined to another ({source})")
    raise PlacementError(
        f"{ranks} ranks do not fit on {topology.nodes} {topology.name}{lnc}, "
        f"{topology.max_ranks} at most; {'; '.join(remedies)}"
    )


def _check_division(topology: Topology, ranks: int) -> None:
    nodes = topology.nodes
    if ranks % nodes == 0:
        return
    fewest = -(-ranks // topology.ranks_per_node)
    fitting = next(count for count in range(fewest, ranks + 1) if ranks % count == 0)
    raise PlacementError(
        f"{ranks} ranks do not divide equally over {nodes} instances of {topology.name}; "
        f"with nodes={fitting} each would hold {ranks // fitting}"
    )


def _place_by_rows(topology: Topology, ranks: int, path: str, rows: Places) -> Placement:
    """As a file says; PlacementError, with its name, for places that are not there, or twice."""
    if len(rows) != ranks:
        raise PlacementError(f"{path}: {len(rows)} places for {ranks} ranks")
    limits = (topology.nodes, topology.chips_per_node, topology.ranks_per_chip)
    first: dict[tuple[int, ...], int] = {}
    for rank, row in enumerate(rows):
        for what, value, limit in zip(("node", "chip", "core"), row, limits, strict=True):
            if value >= limit:
                raise PlacementError(f"{path}: rank {rank}: {what} {value} is not below {limit}")
        if row in first:
            raise PlacementError(f"{path}: ranks {first[row]} and {rank} are both at {list(row)}")
        first[row] = rank
    return placed_at(topology, path, np.array(rows))


def _rows(path: str) -> list[tuple[int, ...]]:
    """The rows of a placement file, each three integers from 0."""
    document = _json(path)
    if not isinstance(document, dict) or set(document) != {"ranks"}:
        raise PlacementError(f'{path}: expected {{"ranks": [[node, chip, core], …]}}')
    rows = document["ranks"]
    if not isinstance(rows, list):
        raise PlacementError(f"{path}: ranks is not a list of [node, chip, core]")
    for rank, row in enumerate(rows):
        is_place = isinstance(row, list) and len(row) == 3
        if not is_place or not all(type(value) is int and value >= 0 for value in row):
            raise PlacementError(f"{path}: rank {rank}: {row!r} is not [node, chip, core] from 0")
    return [tuple(row) for row in rows]


def _json(path: str) -> object:
    check_is_known(path)
    try:
        data = read_file(path, MOST_JSON_BYTES)
    except OSError as error:
        raise PlacementError(f"{path}: {reason_of(error)}") from error
    if other := recognised(data, FileRole.PLACEMENT):
        raise PlacementError(f"{path}: not a placement, but {other}")
    try:
        return json_of(data)
    except ValueError as error:
        raise PlacementError(f"{path}: not JSON: {str(error).lower()}") from error


def _number(key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise PlacementError(f"{key}={text} is not a number from 1")
    return int(text)
