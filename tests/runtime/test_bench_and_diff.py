"""`nccrt bench` and `nccrt diff` as functions: sizes, factors, checks, what changes and why."""

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.errors import InputError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.report import bench, bench_rows
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.report.diff import Change, Diff, compared, why_nothing
from ncc_runtime.report.explain import explained
from tests.programs import collective_program


def case_of(name: str, ranks: int = 4, dtype: str = "fp32", size: int = 4096) -> Case:
    return Case(OPERATORS[name], ranks, DTYPES[dtype], size)


PLACES = ("linear", "spread")


def compare(program: Program, *places: str) -> Diff:
    models = [
        ncc_runtime.load(program, "trn2", placement=place.partition("/")[0])
        if "/" not in place
        else ncc_runtime.load(program, "trn2", nodes=int(place.partition("/")[2]))
        for place in places
    ]
    runs = [model.run(values=False) for model in models]
    return compared((models[0].executable, models[1].executable), (runs[0], runs[1]))


def test_sizes_go_by_a_factor_or_by_a_step() -> None:
    assert list(bench.sizes(4, 64, None, None)) == [4, 8, 16, 32, 64]
    assert list(bench.sizes(4, 64, 4, None)) == [4, 16, 64]
    assert list(bench.sizes(4, 15, None, 5)) == [4, 9, 14]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("allr", 1.75),
        ("allg", 0.875),
        ("redsct", 0.875),
        ("alltoall", 0.875),
        ("alltoallv", 0.875),
        ("allgv", 0.875),
        ("permute", 1),
    ],
)
def test_bus_bandwidth_has_the_factors_of_nccom_test(name: str, share: float) -> None:
    assert OPERATORS[name].wire_share(8) == share
    line = bench_rows.BenchRow(case_of(name, 8, size=8000), "x", 2.0)
    assert line.algbw_gb_per_s == 4.0
    assert line.busbw_gb_per_s == 4.0 * share


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
def test_size_is_that_of_the_larger_side_in_equal_shares(name: str) -> None:
    case = case_of(name, 3, "bf16", 100)
    assert case.elements == (50 if name == "all_reduce" else 48)
    assert max(case.operand_elements, case.result_elements) == case.elements


@pytest.mark.parametrize(
    "name",
    ["allr", "allg", "redsct", "alltoall", "alltoallv", "all_gatherv", "permute", "sendrecv"],
)
@pytest.mark.parametrize("dtype", ["uint8", "int32", "fp8e4", "fp16", "bf16", "fp32"])
def test_values_of_every_operator_and_type_pass_the_check(name: str, dtype: str) -> None:
    case = case_of(name, 6, dtype, 600)
    model = ncc_runtime.load(program_of_case(case), "trn2", placement="spread")
    for mode in ("random", "all_ones"):
        given = bench.operands(case, mode, np.random.default_rng(1))
        bench.check(case, given, model.run([given]).outputs[0])


def test_a_wrong_value_fails_the_check_by_rank_and_element() -> None:
    case = case_of("allr")
    given = bench.operands(case, "all_ones", np.random.default_rng(0))
    got = np.full_like(given, 4)
    got[2, 7] = 3
    with pytest.raises(InputError, match=r"rank 2 element 7 is 3\.0, expected 4\.0"):
        bench.check(case, given, got)


def test_ranks_that_round_differently_fail_the_check() -> None:
    case = case_of("allr", dtype="bf16")
    given = bench.operands(case, "random", np.random.default_rng(0))
    got = np.broadcast_to(given.astype(np.float32).sum(axis=0), given.shape).astype(given.dtype)
    bench.check(case, given, got)
    got.view(np.uint16)[1, 0] += 1
    with pytest.raises(InputError, match="the ranks differ"):
        bench.check(case, given, got)


@pytest.mark.parametrize("forced", [{}, {"all-reduce": "ring", "all-to-all": "pairwise"}])
@pytest.mark.parametrize("size", [4096, 1 << 26])
@pytest.mark.parametrize("name", ["allr", "alltoall", "permute"])
def test_time_is_the_clocks_of_the_algorithm_that_explain_says_is_chosen(
    name: str, size: int, forced: dict[str, str]
) -> None:
    case = case_of(name, 64, size=size)
    model = ncc_runtime.load(program_of_case(case), "trn2", algorithms=forced)
    placed = model.executable
    line = bench_rows.row_of(case, placed)
    (collective,) = model.run(values=False, verify=False).collectives
    (row,) = explained(placed, forced).rows
    assert line.algorithm == row.choice.chosen.name == placed.lowered[0].name
    assert line.time_us == collective.time_us
    assert line.time_us >= row.bound.time_ps / 1e6


def test_iterations_do_not_change_the_time() -> None:
    once = case_of("allr", 8)
    often = attrs.evolve(once, iterations=5)
    one, five = (
        bench_rows.row_of(case, ncc_runtime.load(program_of_case(case)).executable)
        for case in (once, often)
    )
    assert one.time_us == five.time_us


def test_the_same_place_twice_changes_nothing() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [64])
    diff = compare(program, "linear", "linear")
    assert diff.is_empty
    assert why_nothing(diff) == "every rank is on the same core of the same machine"


def test_time_and_bytes_of_a_diff_are_of_one_run_of_one_collective() -> None:
    one, three = (
        compare(collective_program(CollectiveOp.ALL_REDUCE, 8, [4096], repeat=often), *PLACES)
        for often in (1, 3)
    )
    (row,), (rows,) = one.rows, three.rows
    assert (row.runs, rows.runs) == (1, 3)
    for once, often in zip(row.sides, rows.sides, strict=True):
        assert often.traffic == once.traffic
        assert 0.5 * once.mean_time_us < often.mean_time_us < 1.5 * once.mean_time_us


def test_a_program_without_collectives_says_so() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [64], repeat=0)
    diff = compare(program, "linear", "spread")
    assert diff.is_empty
    assert why_nothing(diff).startswith("the program has no collectives")


def test_spreading_a_chip_over_chips_changes_transport_and_links() -> None:
    program = collective_program(CollectiveOp.ALL_GATHER, 4, [64])
    (row,) = compare(program, "linear", "spread").rows
    assert {Change.TRANSPORT, Change.LINKS, Change.TIME} <= set(row.changes)
    inside, apart = (side.traffic.bytes_by_transport for side in row.sides)
    assert inside[1] == 3 * 4 * 64 * 4
    assert inside[2] == 0
    assert apart[1] == 0
    assert apart[2] >= 3 * 4 * 64 * 4


def test_a_second_instance_changes_the_algorithm() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [1 << 20])
    (row,) = compare(program, "linear/1", "linear/2").rows
    assert Change.ALGORITHM in row.changes
    buffer = (1 << 20) * 4
    # Both instances must learn the other's sum: the least that may cross is a buffer each way.
    assert row.sides[0].traffic.bytes_by_transport[3] == 0
    assert row.sides[1].traffic.bytes_by_transport[3] >= 2 * buffer


def test_bytes_by_transport_equal_those_that_a_run_counts() -> None:
    program = collective_program(CollectiveOp.ALL_TO_ALL, 16, [16 * 63])
    diff = compare(program, "linear", "spread")
    runs = [
        ncc_runtime.load(program, "trn2", placement=one).run(values=False)
        for one in ("linear", "spread")
    ]
    for side, run in zip(diff.rows[0].sides, runs, strict=True):
        counted = run.collectives[0].bytes_by_transport
        assert tuple(counted.values()) == side.traffic.bytes_by_transport[1:]
