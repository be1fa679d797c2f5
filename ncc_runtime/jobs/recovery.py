"""How a job goes on after a fault: on which cores, with which program, with the same bits or not.

A rank that dies takes its core with it: a spare takes its place, or the job shrinks to a program
that was compiled for fewer data-parallel replicas. A link that dies is routed around: the same
ranks stay where they are, and algorithms are chosen and proved anew.
"""

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.array_files import StoredArray
from ncc_runtime.collectives.choose import shows_order
from ncc_runtime.errors import InputError, NccError, PlacementError, TopologyError
from ncc_runtime.inputs import check_type, checked_input, parameter_text, uncut
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement, placed_at
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.runtime import Model
from ncc_runtime.step_inputs import Feed, ranks_of
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.graph import Topology, build_spec

Load = Callable[[Program, Placement], Model]
"""Fills a program on its place, with the options that the job has."""


class OnFault(enum.StrEnum):
    """What is tried after a fault."""

    SPARE = "spare"  # a free core takes the place of a dead rank
    REROUTE = "reroute"  # the same ranks on the same cores, without the dead link
    SHRINK = "shrink"  # a program for fewer replicas, on the cores that are left
    STOP = "stop"


@attrs.frozen
class JobFault:
    """A rank or a link that dies for good while a step runs; steps count from 0."""

    step: int
    rank: int | None = None
    link: str | None = None  # as `--down` names it

    @classmethod
    def of_text(cls, text: str) -> "JobFault":
        """`at step 7: rank 3 dead` or `at step 9: link c0-c1 down`; InputError for another form."""
        match = _FAULT.fullmatch(" ".join(text.split()))
        if match is None:
            form = "'at step 7: rank 3 dead' or 'at step 9: link c0-c1 down'"
            raise InputError(f"{text!r} is not of the form {form}; steps count from 0")
        step = int(match["step"])
        if match["rank"] is not None:
            return cls(step, rank=int(match["rank"]))
        try:
            fault_names.down(match["link"])
        except TopologyError as error:
            raise InputError(f"{text!r}: {error}") from error
        return cls(step, link=match["link"])

    @property
    def subject(self) -> str:
        return f"rank {self.rank}" if self.link is None else f"link {self.link}"

    def __str__(self) -> str:
        return f"{self.subject} dies in step {self.step}"


_FAULT = re.compile(
    r"at step (?P<step>\d{1,12}): (?:rank (?P<rank>\d{1,6}) dead|link (?P<link>\S{1,40}) down)",
    re.ASCII,
)


@attrs.frozen
class ChangedCollective:
    """A collective that may reduce in another order after a recovery, so that bits may differ."""

    name: str  # or that of a program for fewer ranks, which takes the place of all
    change: str  # `ring → mesh`, or what else differs


@attrs.frozen(eq=False)
class Recovery:
    """How the job goes on."""

    how: OnFault
    what: str  # a line
    model: Model
    changed: tuple[ChangedCollective, ...]  # since before the first fault; none: bits too
    refused: tuple[str, ...] = ()  # what was tried before, and why it could not be


@attrs.define(eq=False)
class Machine:
    """The cores of a job: which are dead, which are kept free."""

    topology: Topology
    dead: set[tuple[int, int, int]] = attrs.field(factory=set)
    spares: int | None = None  # that may still be taken; None: whatever is free

    def free(self, placement: Placement) -> list[tuple[int, int, int]]:
        """Cores without a rank that live: (node, chip inside the node, core)."""
        topology, used = self.topology, set(map(tuple, placement.places.tolist()))
        return [
            place
            for place in np.ndindex(
                topology.nodes, topology.chips_per_node, topology.ranks_per_chip
            )
            if place not in used and place not in self.dead
        ]

    def lose(self, link: str) -> None:
        """A link that is down from now on."""
        before, down = self.topology, fault_names.down(link)
        self.topology = build_spec(before.spec, before.nodes, before.lnc, (down,))


def passes(executable: Executable, link: str) -> bool:
    """Whether any transfer of a program passes a link; of one that is down, none does."""
    try:
        links = fault_names.links_of_name(executable.topology.links, link)
    except TopologyError:
        return False
    for queue in executable.queues:
        if isinstance(queue, DmaQueue):
            for peers in (queue.peer, queue.second_peer):
                if peers is not None:
                    row, sender = np.nonzero(peers != IDLE)
                    _, passed = executable.routes.link_runs(sender, peers[row, sender])
                    if np.isin(passed, links).any():
                        return True
    return False


def with_spares(placement: Placement, spares: int) -> Placement:
    """The same places with at least so many cores free, on more instances if need be."""
    topology = placement.topology
    missing = placement.ranks + spares - topology.max_ranks
    if missing <= 0:
        return placement
    nodes = topology.nodes + -(-missing // topology.ranks_per_node)
    try:
        larger = build_spec(topology.spec, nodes, topology.lnc)
    except TopologyError as error:
        raise PlacementError(
            f"{spares} spare cores beside {placement.ranks} ranks need {nodes} instances: {error}"
        ) from error
    return placed_at(larger, placement.strategy, placement.places)


def recovered(
    fault: JobFault,
    model: Model,
    undisturbed: Executable,
    machine: Machine,
    order: Sequence[OnFault],
    smaller: Sequence[Program],
    load: Load,
) -> Recovery | tuple[str, ...]:
    """The first way of an order that works, or why none does; `undisturbed` is without faults."""
    refused: list[str] = []
    if fault.rank is not None:
        place = model.executable.placement.places[fault.rank]
        machine.dead.add((int(place[0]), int(place[1]), int(place[2])))
    for how in order:
        if how is OnFault.STOP:
            refused.append("stop: as --on-fault says")
            break
        try:
            what, after = _WAYS[how](fault, model, machine, smaller, load)
        except NccError as error:
            refused.append(f"{how}: {error}")
            continue
        changed = tuple(changed_collectives(undisturbed, after.executable))
        return Recovery(how, what, after, changed, tuple(refused))
    return tuple(refused)


def _on_spare(
    fault: JobFault, model: Model, machine: Machine, _: Sequence[Program], load: Load
) -> tuple[str, Model]:
    if fault.rank is None:
        raise PlacementError("a spare core replaces no link")
    placement = model.executable.placement
    free = machine.free(placement)
    if not free or machine.spares == 0:
        kept = "" if machine.spares is None else " (--spares)"
        raise PlacementError(f"no spare core is left{kept}")
    node, chip, core = placement.places[fault.rank].tolist()
    # the nearest: on its chip, then of its instance, then any
    near = min(free, key=lambda place: (place[0] != node, abs(place[1] - chip), place))
    places = placement.places.copy()
    places[fault.rank] = near
    moved = load(model.executable.program, _after_faults(machine, placement, places))
    if machine.spares is not None:
        machine.spares -= 1
    names = [_core_name(placement, place) for place in ((node, chip, core), near)]
    return f"rank {fault.rank} moves from {names[0]} to the spare {names[1]}", moved


def _after_faults(machine: Machine, placement: Placement, places: np.ndarray) -> Placement:
    """Other places on the machine as it is now, which outputs call `linear after faults` say."""
    name = f"{placement.strategy.removesuffix(_AFTER)}{_AFTER}"
    return placed_at(machine.topology, name, places)


_AFTER = " after faults"


def _core_name(placement: Placement, place: Sequence[int]) -> str:
    node, chip, core = place
    return f"core {core} of c{node * placement.topology.chips_per_node + chip}"


def _rerouted(
    fault: JobFault, model: Model, machine: Machine, _: Sequence[Program], load: Load
) -> tuple[str, Model]:
    if fault.link is None:
        raise PlacementError("a dead rank needs another core")
    placement = model.executable.placement
    machine.lose(fault.link)
    places = placed_at(machine.topology, placement.strategy, placement.places)
    after = load(model.executable.program, places)
    return f"the same ranks on the same cores, without {fault.link}", after


def _shrunk(
    fault: JobFault, model: Model, machine: Machine, smaller: Sequence[Program], load: Load
) -> tuple[str, Model]:
    if fault.rank is None:
        raise PlacementError("fewer ranks bring no link back")
    placement = model.executable.placement
    living = [place for place in map(tuple, placement.places.tolist()) if place not in machine.dead]
    fitting = [program for program in smaller if program.ranks <= len(living)]
    if not fitting:
        sizes = ", ".join(str(program.ranks) for program in smaller)
        known = f"--smaller has programs for {sizes}" if sizes else "--smaller gives none"
        raise PlacementError(f"no program for at most {len(living)} ranks; {known}")
    program = max(fitting, key=lambda each: each.ranks)
    places = np.array(living[: program.ranks])
    after = load(program, _after_faults(machine, placement, places))
    text = f"{program.name} for {program.ranks} ranks instead of {placement.ranks}"
    return f"{text}, on cores that are left", after


_WAYS = {OnFault.SPARE: _on_spare, OnFault.REROUTE: _rerouted, OnFault.SHRINK: _shrunk}


def changed_collectives(before: Executable, after: Executable) -> Iterator[ChangedCollective]:
    """The collectives that may reduce in another order, so that bits may differ.

    What a collective joins, and in which order, is decided by its transfers: where these are the
    same, rank by rank and address by address, the arithmetic is. Where they are not, the order may
    still be the same; that is not looked into. A program for fewer ranks computes something else
    whatever its collectives do, and is named itself.
    """
    if before.program is not after.program:
        change = f"for {after.ranks} ranks instead of {before.ranks}"
        yield ChangedCollective(after.program.name, change)
        return
    for number, placeholder in enumerate(before.program.placeholders):
        if not shows_order(placeholder):
            continue
        algorithms = [each.lowered[number].name for each in (before, after)]
        if algorithms[0] != algorithms[1]:
            change = f"{algorithms[0]} → {algorithms[1]}"
        elif _transfers(before, number) != _transfers(after, number):
            change = f"{algorithms[1]}, with other transfers"
        else:
            continue
        yield ChangedCollective(placeholder.name or f"p{number}", change)


def _transfers(executable: Executable, placeholder: int) -> dict[str, list[bytes]]:
    """What the DMA rings do for a placeholder, as bytes by the ring's name."""
    found = {}
    for queue in executable.queues:
        if isinstance(queue, DmaQueue) and (queue.placeholder == placeholder).any():
            own = queue.placeholder == placeholder
            columns = (getattr(queue, name) for name in _ARITHMETIC)
            found[queue.name] = [
                b"" if column is None else column[own].astype(np.int64).tobytes()
                for column in columns
            ]
    return found


_ARITHMETIC = (
    *("opcode", "round", "divisor", "peer", "sources", "target", "size_bytes"),
    *("source_rank", "second_peer", "second_target"),
)
"""Columns of a ring that say what it adds to what."""


def check_smaller(program: Program, other: Program, feed: Feed) -> None:
    """Refuse a program that is not the same step for fewer ranks; InputError."""
    what = f"--smaller {other.name}"
    if other.ranks >= program.ranks:
        raise InputError(f"{what} is for {other.ranks} ranks, {program.name} for {program.ranks}")
    counts = [(len(each.inputs), len(each.outputs)) for each in (program, other)]
    if counts[0] != counts[1]:
        texts = ["{} inputs and {} outputs".format(*count) for count in counts]
        raise InputError(f"{what} has {texts[1]}, {program.name} has {texts[0]}")
    for number in range(len(program.inputs)):
        names = [each.parameter(number).name for each in (program, other)]
        if all(names) and names[0] != names[1]:
            raise InputError(f"{what}: arg{number} is {names[1]}, of {program.name} {names[0]}")
    for output, number in feed:
        one, two = other.outputs[output], other.inputs[number]
        if other.tensors[one].type_text != other.tensors[two].type_text:
            raise InputError(f"{what}: out{output} and arg{number} have different types")


def resharded(
    before: Program, after: Program, number: int, array: np.ndarray, *, is_state: bool
) -> np.ndarray:
    """An input of one program, [ranks, *shape], as the program for fewer ranks takes it.

    What is alike on all ranks stays so; what the model says how it is cut is cut anew. Of what is
    no state, such as a batch, the first ranks keep theirs. InputError where none of this can be.
    """
    old, new = (each.tensors[each.inputs[number]] for each in (before, after))
    if old.type_text == new.type_text and _is_alike(array):
        return array[0]
    infos = [each.parameter(number) for each in (before, after)]
    wholes = [
        each.whole_shape(info, each.inputs[number])
        for each, info in zip((before, after), infos, strict=True)
    ]
    if infos[0].sharding is not None and wholes[0] is not None and wholes[0] == wholes[1]:
        sharding = before.shardings[infos[0].sharding]
        whole = uncut(RankedArray.of_each(array), sharding, wholes[0], ranks_of(before, number))
        cut = checked_input(before, number, whole).whole()
        if cut.tobytes() == np.ascontiguousarray(array).tobytes():
            return whole
    if not is_state and old.type_text == new.type_text:
        return array[: len(ranks_of(after, number))]
    fact = f"{parameter_text(before, number)} differs between ranks"
    raise InputError(
        f"{fact}, and the model does not say how it is cut: it cannot be given to "
        f"{after.ranks} ranks; only state that is alike on all ranks, or has a sharding, can be"
    )


def _is_alike(array: np.ndarray) -> bool:
    first = np.ascontiguousarray(array[0]).tobytes()
    return all(np.ascontiguousarray(row).tobytes() == first for row in array[1:])


def refitted(before: Program, after: Program, batches: Mapping[int, Any]) -> dict[int, StoredArray]:
    """Batches for fewer ranks: what is given rank by rank loses the rows of the last ranks."""
    fitted = {}
    for number, array in batches.items():
        stored = array
        count = len(ranks_of(after, number))
        shape = before.tensors[before.inputs[number]].shape
        if array.shape[1:] == (len(ranks_of(before, number)), *shape):
            cut = (array.shape[0], count, *array.shape[2:])

            def load(array: Any = array, count: int = count) -> np.ndarray:
                return np.asarray(array)[:, :count]

            stored = StoredArray(cut, array.dtype, load)
        row = StoredArray(stored.shape[1:], stored.dtype, lambda: np.empty(0))
        check_type(after, number, row)
        fitted[number] = stored
    return fitted
