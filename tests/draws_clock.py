"""Random runs for the clock: collectives that share ways, and compute beside them."""

from collections.abc import Sequence

from hypothesis import strategies as st

from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import load_on
from tests.draws_collectives import DIVIDING, PLACES, pairs_of, some_groups
from tests.programs import collective_program


def placed(program: Program, place: PlaceOptions, op: CollectiveOp, name: str) -> Executable | None:
    """The program with that algorithm; None where it does not run."""
    try:
        model = load_on(program, place, LoadOptions({op.value: name}))
    except LoweringError:
        return None
    return model.executable


@st.composite
def placed_collectives(
    draw: st.DrawFn, sizes: Sequence[int] = (0, 7, 1 << 10, 100_003, 1 << 18)
) -> Executable:
    """Any operator by any algorithm on a few ranks; up to a megabyte, so that ways are shared."""
    name, nodes, strategy, lnc = draw(st.sampled_from(PLACES))
    op = draw(st.sampled_from(list(CollectiveOp)))
    ranks = draw(st.integers(1, 5)) * nodes
    groups = draw(some_groups(op, ranks))
    step = len(groups[0]) if op in DIVIDING else 1
    size = draw(st.sampled_from(sizes))
    program = collective_program(
        op,
        ranks,
        [] if op is CollectiveOp.BARRIER else [size * step],
        groups=groups,
        pairs=draw(pairs_of(ranks)) if op is CollectiveOp.PERMUTE else (),
        root=draw(st.integers(0, min(map(len, groups)) - 1)) if op.is_rooted else 0,
        repeat=draw(st.integers(1, 2)),
    )
    place = PlaceOptions(name, nodes, strategy, lnc)
    names = draw(st.permutations(list(ALGORITHMS[op])))
    found = (placed(program, place, op, one) for one in names)
    return next(one for one in found if one is not None)


_HEAD = """HloModule busy, replica_count={ranks}
sum {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }}
ENTRY e {{
 v0 = f32[{size},{size}] parameter(0)
"""
_LOCAL = (
    "negate({a})",
    "add({a}, {b})",
    "exponential({a})",
    "dot({a}, {b}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
    "transpose({a}), dimensions={{1,0}}",
)
_COLLECTIVE = "all-reduce({a}), replica_groups={{}}, to_apply=sum, frontend_attributes={stream}"


@st.composite
def busy_texts(draw: st.DrawFn) -> str:
    """Work on all engines beside all-reduces on several streams; some depends on another."""
    ranks, size = draw(st.integers(1, 5)), draw(st.sampled_from([64, 500, 1024]))
    lines = [_HEAD.format(ranks=ranks, size=size)]
    count = draw(st.integers(1, 9))
    for number in range(count):
        before = st.integers(0, number)
        a, b = f"v{draw(before)}", f"v{draw(before)}"
        collects = draw(st.booleans())
        stream = f'{{stream_id="{number % 4}"}}'
        what = (_COLLECTIVE if collects else _LOCAL[number % 5]).format(a=a, b=b, stream=stream)
        lines.append(f" v{number + 1} = f32[{size},{size}] {what}\n")
    names = ", ".join(f"v{number}" for number in range(1, count + 1))
    kinds = ", ".join([f"f32[{size},{size}]"] * count)
    lines.append(f" ROOT r = ({kinds}) tuple({names})\n}}\n")
    return "".join(lines)
