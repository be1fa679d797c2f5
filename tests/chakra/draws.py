"""Random traces of several ranks that fit together, and random damage to their files."""

from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

from tests.chakra import messages
from tests.chakra.messages import Node, coll, comp, recv, send

SIZES = (2, 64, 1000, 4097, 65536)


@attrs.frozen
class DrawnTrace:
    """Nodes of each rank, and process groups."""

    ranks: tuple[tuple[Node, ...], ...]
    groups: dict[str, list[int]]


@st.composite
def traces(draw: st.DrawFn) -> DrawnTrace:
    """A trace made in one order of all ranks, so that it can be performed.

    What happens is drawn one thing after another: an instruction of a rank, a collective of a group
    or a message. Each depends on some of what its ranks did before. Ranks may list what does not
    depend on one another in any order.
    """
    count = draw(st.integers(2, 6))
    parts = draw(st.permutations(range(count)))
    cut = draw(st.integers(1, count))
    groups = {"1": sorted(parts[:cut]), "2": list(parts)}
    if parts[cut:]:
        groups["3"] = sorted(parts[cut:])
    ranks: list[list[Node]] = [[] for _ in range(count)]

    def before(rank: int) -> tuple[int, ...]:
        known = [node.id for node in ranks[rank]]
        if not known:
            return ()
        return tuple(draw(st.lists(st.sampled_from(known), unique=True, max_size=3)))

    for number in range(1, draw(st.integers(2, 13))):
        kind = draw(st.sampled_from(["comp", "coll", "message"]))
        size = draw(st.sampled_from(SIZES))
        if kind == "comp":
            rank = draw(st.integers(0, count - 1))
            us, ops = draw(st.integers(0, 50)), draw(st.integers(0, 10**9))
            ranks[rank].append(comp(number, *before(rank), us=us, num_ops=ops, tensor_size=size))
        elif kind == "coll":
            # those of a size for all groups alone can be programs of XLA in all cases
            name = draw(st.sampled_from(["", *groups]))
            members = groups[name] if name else list(range(count))
            op = draw(st.sampled_from([messages.ALL_REDUCE, messages.REDUCE, messages.BROADCAST]))
            for rank in members:
                facts = {"pg_name": name} if name else {}
                ranks[rank].append(coll(number, op, size, *before(rank), **facts))
        else:
            source, target = draw(st.permutations(range(count)))[:2]
            tag = draw(st.integers(0, 1))
            ranks[source].append(send(number, target, size, *before(source), comm_tag=tag))
            ranks[target].append(recv(number, source, size, *before(target), comm_tag=tag))
    for nodes in ranks:
        nodes.append(comp(1000, us=1))
    return DrawnTrace(tuple(map(tuple, ranks)), groups)


@st.composite
def damaged(draw: st.DrawFn, files: Sequence[bytes]) -> list[bytes]:
    """The files of a trace, one of which lost, won or changed some bytes."""
    number = draw(st.integers(0, len(files) - 1))
    data = bytearray(files[number])
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 20))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=12))
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 20))]
    return [bytes(data) if at == number else one for at, one in enumerate(files)]
