"""`nccc compile` of execution traces: programs, matching over ranks, and what is refused."""

import gzip
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.frontends.chakra import files, meetings
from ncc_compiler.frontends.chakra.programs import RankProgram, read_programs
from ncc_runtime.errors import InputError
from ncc_runtime.neff.isa import WORK, Engine
from ncc_runtime.neff.program import Program
from tests.chakra import messages
from tests.chakra.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COMP,
    GATHER,
    MEM_LOAD,
    MEM_STORE,
    METADATA,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    Node,
    coll,
    comp,
    recv,
    send,
)

LAUNCH_US = 15.0
BOTH = {"1": [0, 1], "2": [2, 3]}


def compiled(
    folder: Path, ranks: Sequence[Sequence[Node]], groups: dict[str, list[int]] | None = None
) -> list[tuple[Program, tuple[int, ...]]]:
    """The programs of a trace and their ranks."""
    path = messages.write(folder / "traces", ranks, groups=groups)
    return [(neff.program, its) for neff, its in ncc_compiler.compile_trace(path)]


def only(folder: Path, ranks: Sequence[Sequence[Node]], **settings: object) -> Program:
    """The program that all ranks have."""
    ((program, its),) = compiled(folder, ranks, **settings)
    assert its == tuple(range(len(ranks)))
    return program


def time_us(programs: list[tuple[Program, tuple[int, ...]]]) -> float:
    run = ncc_runtime.load(programs, "trn2").run(values=False)  # proved, too
    assert run.time_us is not None
    return run.time_us


def refused(folder: Path, ranks: Sequence[Sequence[Node]], **settings: object) -> str:
    """The one complaint about a trace."""
    with pytest.raises(CompileError) as caught:
        compiled(folder, ranks, **settings)
    (complaint,) = caught.value.diagnostics
    assert complaint.help
    return complaint.render()


# ---- instructions


def test_an_instruction_takes_as_long_as_the_trace_says(tmp_path: Path) -> None:
    programs = compiled(tmp_path, [[comp(1, us=40), comp(2, 1, us=20)]])
    assert time_us(programs) == pytest.approx(LAUNCH_US + 60, abs=0.3)


def test_the_attribute_of_older_traces_is_a_duration_too(tmp_path: Path) -> None:
    assert time_us(compiled(tmp_path, [[comp(1, runtime=40)]])) == pytest.approx(55, abs=0.3)


def test_sizes_say_it_where_there_is_no_duration_or_it_is_not_wanted(tmp_path: Path) -> None:
    path = messages.write(tmp_path / "traces", [[comp(1, us=1, num_ops=10**12, tensor_size=10**6)]])
    timed, sized = (ncc_compiler.compile_trace(path, durations=both) for both in (True, False))
    assert time_us(timed) < 20 < 1000 < time_us(sized)
    (row,) = [row for row in sized[0][0].program.queues[Engine.TENSOR] if row.flops]
    assert (row.flops, row.bytes_in) == (10**12, 10**6)


def test_one_instruction_runs_at_a_time(tmp_path: Path) -> None:
    programs = compiled(tmp_path, [[comp(1, us=40), comp(2, us=40)]])
    assert time_us(programs) == pytest.approx(LAUNCH_US + 80, abs=0.3)


def test_what_a_host_does_runs_beside_what_a_device_does(tmp_path: Path) -> None:
    host = Node(1, "aten::mm", COMP, us=40, attributes={"is_cpu_op": True, "num_ops": 10**15})
    programs = compiled(tmp_path, [[host, comp(2, us=40)]])
    assert time_us(programs) == pytest.approx(LAUNCH_US + 40, abs=0.4)
    assert WORK in programs[0][0].queues[Engine.SYNC].names()


@pytest.mark.parametrize(("kind", "column"), [(MEM_LOAD, "bytes_in"), (MEM_STORE, "bytes_out")])
def test_loads_and_stores_are_bytes(kind: int, column: str, tmp_path: Path) -> None:
    node = Node(1, "mem", kind, attributes={"is_cpu_op": False, "tensor_size": 12345})
    (row, *_) = only(tmp_path, [[node]]).queues[Engine.SYNC]
    assert {name: getattr(row, name) for name in ("bytes_in", "bytes_out")} == {
        "bytes_in": 0,
        "bytes_out": 0,
        column: 12345,
    }


def test_dependencies_go_through_metadata(tmp_path: Path) -> None:
    between = Node(2, "meta", METADATA, (1,))
    host = Node(3, "after", COMP, (2,), us=40, attributes={"is_cpu_op": True})
    programs = compiled(tmp_path, [[comp(1, us=40), between, host]])
    assert time_us(programs) == pytest.approx(LAUNCH_US + 80, abs=0.4)


def test_control_dependencies_order_and_may_name_what_a_converter_dropped(tmp_path: Path) -> None:
    host = Node(
        2, "h", COMP, control=(1, 77), us=40, attributes={"is_cpu_op": True, "unknown": 1.5}
    )
    programs = compiled(tmp_path, [[comp(1, us=40), host]])
    assert time_us(programs) == pytest.approx(LAUNCH_US + 80, abs=0.4)


def test_nodes_may_stand_before_what_they_depend_on(tmp_path: Path) -> None:
    host = Node(1, "h", COMP, (2,), us=40, attributes={"is_cpu_op": True})
    assert time_us(compiled(tmp_path, [[host, comp(2, us=40)]])) == pytest.approx(95, abs=0.4)


def test_values_are_refused(tmp_path: Path) -> None:
    model = ncc_runtime.load(compiled(tmp_path, [[comp(1, us=4)]]), "trn2")
    with pytest.raises(InputError, match="only sizes are known, the first is comp1"):
        model.run(seed=0)


# ---- collectives


@pytest.mark.parametrize(
    ("op", "name", "operand", "result"),
    [
        (ALL_REDUCE, "all-reduce", 4096, 4096),
        (ALL_GATHER, "all-gather", 4096, 4 * 4096),
        (REDUCE_SCATTER, "reduce-scatter", 4096, 1024),
        (messages.REDUCE_SCATTER_BLOCK, "reduce-scatter", 4096, 1024),
        (ALL_TO_ALL, "all-to-all", 4096, 4096),
        (BROADCAST, "collective-broadcast", 4096, 4096),
        (REDUCE, "ncc.reduce", 4096, 4096),
        (GATHER, "ncc.gather", 4096, 4 * 4096),
        (SCATTER, "ncc.scatter", 4096, 1024),
    ],
)
def test_a_size_is_that_of_what_a_rank_gives(
    op: int, name: str, operand: int, result: int, tmp_path: Path
) -> None:
    program = only(tmp_path, [[comp(1, us=1), coll(2, op, 4096, 1)]] * 4)
    (placeholder,) = program.placeholders
    sizes = [
        program.tensors[tensors[0]].size_bytes
        for tensors in (placeholder.operands, placeholder.results)
    ]
    assert (placeholder.op.value, sizes) == (name, [operand, result])
    assert placeholder.groups == ((0, 1, 2, 3),)
    assert time_us([(program, range(4))]) > LAUNCH_US


def test_a_barrier_has_no_size(tmp_path: Path) -> None:
    node = Node(1, "b", messages.COLL, attributes={"comm_type": BARRIER, "is_cpu_op": False})
    (placeholder,) = only(tmp_path, [[node]] * 4).placeholders
    assert (placeholder.op.value, placeholder.operands) == ("ncc.barrier", ())


def test_an_odd_size_is_bytes_and_rounded_up_to_a_share_for_each(tmp_path: Path) -> None:
    program = only(tmp_path, [[coll(1, REDUCE_SCATTER, 1001)]] * 4)
    (placeholder,) = program.placeholders
    assert program.tensors[placeholder.operands[0]].type_text == "u8[1004]"


def test_groups_come_from_the_file_beside(tmp_path: Path) -> None:
    ranks = [[coll(1, ALL_REDUCE, 64, pg_name="12"[rank // 2])] for rank in range(4)]
    (placeholder,) = only(tmp_path, ranks, groups=BOTH).placeholders
    assert placeholder.groups == ((0, 1), (2, 3))


def test_groups_of_other_ranks_are_a_program_of_their_own(tmp_path: Path) -> None:
    ranks = [[comp(1, us=5), coll(2, ALL_GATHER, 64, 1, pg_name="1")]] * 2 + [[comp(1, us=9)]] * 2
    programs = compiled(tmp_path, ranks, groups={"1": [0, 1]})
    assert [its for _, its in programs] == [(0, 1), (2, 3)]
    assert time_us(programs) > LAUNCH_US + 5


def test_groups_of_metadata_of_pytorch_are_read(tmp_path: Path) -> None:
    listed = (
        '[\'[{"pg_name": "0", "ranks": [], "group_size": 4}, '
        '{"pg_name": "7", "ranks": [0, 2], "group_size": 2}, '
        '{"pg_name": "8", "ranks": [1, 3], "group_size": 2}]\']'
    )
    init = Node(1, "## process_group:init ##", METADATA, inputs=listed)
    ranks = [
        [
            init,
            coll(2, ALL_REDUCE, 64, pg_name="78"[rank % 2]),
            coll(3, ALL_REDUCE, 64, pg_name="0"),
        ]
        for rank in range(4)
    ]
    found = [one.groups for one in only(tmp_path, ranks).placeholders]
    assert found == [((0, 2), (1, 3)), ((0, 1, 2, 3),)]


def test_a_collective_of_no_bytes_or_of_one_rank_is_nothing(tmp_path: Path) -> None:
    nodes = [coll(1, ALL_REDUCE, 0), coll(2, ALL_REDUCE, 64, 1, pg_name="1"), comp(3, 2, us=30)]
    program = only(tmp_path, [nodes], groups={"1": [0]})
    assert program.placeholders == ()
    assert time_us([(program, [0])]) == pytest.approx(LAUNCH_US + 30, abs=0.5)


def test_streams_of_a_trace_are_streams_and_the_fifth_shares_the_last(tmp_path: Path) -> None:
    nodes = [
        coll(k, ALL_REDUCE, 64, stream=stream) for k, stream in enumerate((7, 20, 20, 31, 33, 40))
    ]
    found = [one.stream for one in only(tmp_path, [nodes] * 2).placeholders]
    assert found == [0, 1, 1, 2, 3, 3]


def test_ranks_that_list_independent_collectives_in_other_orders_agree_on_one(
    tmp_path: Path,
) -> None:
    one, other = (coll(k, ALL_REDUCE, 64 * k, pg_name=str(k)) for k in (1, 2))
    ranks = [[one, other], [other, one]]
    programs = compiled(tmp_path, ranks, groups={"1": [0, 1], "2": [1, 0]})
    assert time_us(programs) > LAUNCH_US
    assert all(len(program.placeholders) == 2 for program, _ in programs)


# ---- messages


def test_a_ring_of_messages_is_one_permute(tmp_path: Path) -> None:
    ranks = [
        [send(1, (rank + 1) % 4, 4096), recv(2, (rank - 1) % 4, 4096), comp(3, 2, us=9)]
        for rank in range(4)
    ]
    (placeholder,) = only(tmp_path, ranks).placeholders
    assert placeholder.pairs == ((0, 1), (1, 2), (2, 3), (3, 0))


def test_an_exchange_in_which_a_receive_waits_for_the_send_is_one_permute(tmp_path: Path) -> None:
    ranks = [[send(1, 1 - rank, 64), recv(2, 1 - rank, 64, 1)] for rank in range(2)]
    (placeholder,) = only(tmp_path, ranks).placeholders
    assert placeholder.pairs == ((0, 1), (1, 0))


def test_a_pipeline_of_stages_is_a_chain(tmp_path: Path) -> None:
    def stage(rank: int) -> list[Node]:
        nodes: list[Node] = []
        for batch in range(3):
            first, before = 10 * batch, ()
            if rank:
                nodes.append(recv(first + 1, rank - 1, 4096, comm_tag=batch))
                before = (first + 1,)
            nodes.append(comp(first + 2, *before, us=50))
            if rank < 3:
                nodes.append(send(first + 3, rank + 1, 4096, first + 2, comm_tag=batch))
        return nodes

    programs = compiled(tmp_path, [stage(rank) for rank in range(4)])
    assert [its for _, its in programs] == [(0,), (1,), (2,), (3,)]
    # four stages and three batches: six steps, if stages work side by side
    assert LAUNCH_US + 6 * 50 < time_us(programs) < LAUNCH_US + 6 * 50 + 12 * 30


def test_ranks_of_a_stage_have_one_program(tmp_path: Path) -> None:
    def rank_of(stage: int, part: int) -> list[Node]:
        total = coll(2, ALL_REDUCE, 4096, 1, pg_name=str(stage))
        if stage == 0:
            return [comp(1, us=10), total, send(3, 2 + part, 64, 2)]
        return [recv(1, part, 64), total, comp(3, 2, us=10)]

    ranks = [rank_of(stage, part) for stage in range(2) for part in range(2)]
    programs = compiled(tmp_path, ranks, groups={"0": [0, 1], "1": [2, 3]})
    assert [its for _, its in programs] == [(0, 1), (2, 3)]
    first = programs[0][0]
    assert [one.pairs for one in first.placeholders if one.pairs] == [((0, 2), (1, 3))]
    assert time_us(programs) > LAUNCH_US + 20


def test_messages_match_by_tag_and_in_order(tmp_path: Path) -> None:
    sends = [send(k, 1, size, comm_tag=tag) for k, (size, tag) in enumerate([(64, 5), (128, 6)])]
    receives = [recv(k, 0, size, comm_tag=tag) for k, (size, tag) in enumerate([(128, 6), (64, 5)])]
    programs = compiled(tmp_path, [sends, receives])
    assert time_us(programs) > LAUNCH_US


# ---- files


def forms(folder: Path) -> dict[str, str]:
    """Ways to name one trace."""
    path = messages.write(folder / "traces", [[comp(1, us=4)]] * 2)
    return {
        "folder": path,
        "file": f"{path}/trace.1.et",
        "pattern": f"{path}/trace.%d.et",
        "prefix": f"{path}/trace",
    }


@pytest.mark.parametrize("form", ["folder", "file", "pattern", "prefix"])
def test_a_trace_is_named_by_folder_file_pattern_or_prefix(form: str, tmp_path: Path) -> None:
    (program,) = read_programs(forms(tmp_path)[form])
    assert (program.name, program.ranks) == ("trace", (0, 1))


def test_compressed_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    data = messages.file_of([comp(1, us=4)])
    (folder / "t.0.et").write_bytes(gzip.compress(data))
    (folder / "t.1.et.gz").write_bytes(gzip.compress(data))
    (program,) = read_programs(str(folder))
    assert isinstance(program, RankProgram)
    assert program.ranks == (0, 1)


@pytest.mark.parametrize("version", ["", "0.0.4", "1.0", "1.0.0", "1.0.7"])
def test_versions_of_one_schema_are_read(version: str, tmp_path: Path) -> None:
    (tmp_path / "t.0.et").write_bytes(messages.file_of([comp(1)], version))
    assert len(read_programs(str(tmp_path))) == 1


# ---- what is refused


def _of_bytes(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "trace.0.et").write_bytes(data)


ONE = messages.file_of([comp(1, us=4)])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_of_bytes(b""), r"C1.*trace.0.et: has no nodes"),
        (
            _of_bytes(ONE[:-3]),
            r"C1.*trace.0.et: the message at byte \d+ has \d+ bytes, \d+ are left",
        ),
        (_of_bytes(b"\xff" * 11), r"C1.*byte 0 is not the length of a message"),
        (_of_bytes(ONE + b"\x80"), r"C1.*byte \d+ is not the length of a message"),
        (_of_bytes(b"\x03\xff\xff\xff"), r"C1.*its head is no message of Chakra's schema"),
        (_of_bytes(ONE + b"\x02\xff\xff"), r"C1.*message 2 is no message"),
        (_of_bytes(messages.file_of([comp(1)], "2.0.0")), r"C1.*version '2.0.0'.*0.0.4 and 1.0"),
        (_of_bytes(gzip.compress(ONE)[:-9]), r"C1.*cut off or damaged"),
        (_of_bytes(messages.file_of([comp(1), comp(1)])), r"C2.*two nodes have the id 1"),
        (_of_bytes(messages.file_of([Node(3, "x", 0)])), r"C2.*node 3 \(x\) is of type 0"),
        (_of_bytes(messages.file_of([Node(3, "x", 99)])), r"C2.*node 3 \(x\) is of type 99"),
        (_of_bytes(messages.file_of([comp(1, 9)])), r"C2.*node 1 \(comp1\) depends on the data of"),
        (_of_bytes(messages.file_of([comp(1, num_ops=-1)])), r"C2.*node 1 \(comp1\) has -1 as num"),
        (
            _of_bytes(messages.file_of([comp(1, us=2**60)])),
            r"C2.*node 1 \(comp1\) has \d+ as a dur",
        ),
        (_of_bytes(messages.file_of([comp(1, 2), comp(2, 1)])), r"C3.*node 1 .*; .*node 2"),
        (_of_bytes(messages.file_of([comp(1, 1)])), r"C3.*node 1 \(comp1\)"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(
    make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(CompileError) as caught:
        ncc_compiler.compile_trace(tmp_path)
    (complaint,) = caught.value.diagnostics
    assert re.search(says, complaint.render(), re.DOTALL), complaint.render()
    assert complaint.help


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    path = messages.write(tmp_path, [[comp(1)]] * 3)
    (tmp_path / "trace.1.et").unlink()
    with pytest.raises(CompileError, match="files of 2 ranks, and none of rank 1"):
        ncc_compiler.compile_trace(path)


def test_several_traces_in_a_folder_are_named(tmp_path: Path) -> None:
    messages.write(tmp_path, [[comp(1)]], "one")
    messages.write(tmp_path, [[comp(1)]], "other")
    with pytest.raises(CompileError, match="several traces: one, other"):
        ncc_compiler.compile_trace(tmp_path)


PG = {"1": [0, 1]}


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([[coll(1, 42, 64)]] * 2, "C4.*trace.0.et: node 1 .* has comm_type 42"),
        ([[Node(1, "c", messages.COLL)]] * 2, "C2.*has no comm_size"),
        ([[coll(1, ALL_REDUCE, -1)]] * 2, "C2.*has -1 as its comm_size"),
        ([[coll(1, ALL_REDUCE, 2**50)]] * 2, "C2.*comm_size"),
        ([[coll(1, ALL_REDUCE, 64, pg_name="9")]] * 2, "C4.*process group '9'; known are 1"),
        ([[coll(1, ALL_REDUCE, 64, pg_name="1")]] * 3, "C4.*ranks 0,1, and not of rank 2"),
        ([[coll(1, ALL_REDUCE, 64, involved_dim=(True, False))]] * 2, "C4.*involved_dim"),
        ([[coll(1, ALL_REDUCE, 64)], [coll(1, ALL_REDUCE, 32)]], "C5.*64 bytes.*32 bytes"),
        ([[coll(1, ALL_REDUCE, 64)], [coll(1, ALL_GATHER, 64)]], "C5.*ALL_REDUCE.*ALL_GATHER"),
        ([[coll(1, ALL_REDUCE, 64)], [comp(1)]], "C5.*trace.0.et: node 1.*rank 1 has 0 only"),
        ([[coll(1, ALL_REDUCE, 64, ncc_reduction="xor")]] * 2, "C4.*'xor' as ncc_reduction"),
        ([[coll(1, BROADCAST, 64, ncc_root=2)]] * 2, "C4.*2 as ncc_root"),
        ([[Node(1, "s", messages.SEND)], [comp(1)]], "C6.*node 1 .* has no comm_dst"),
        ([[send(1, 0, 64)], [comp(1)]], "C6.*has 0 as its comm_dst"),
        ([[send(1, 7, 64)], [comp(1)]], "C6.*has 7 as its comm_dst"),
        ([[send(1, 1, 64)], [comp(1)]], "C6.*from rank 0 to rank 1.*rank 1 receives 0 only"),
        ([[comp(1)], [recv(1, 0, 64)]], "C6.*trace.1.et: node 1.*rank 0 sends 0 only"),
        ([[send(1, 1, 64)], [recv(1, 0, 32)]], "C6.*sends 64 bytes.*receives 32"),
        ([[send(1, 1, 64, comm_tag=1)], [recv(1, 0, 64, comm_tag=2)]], "C6.*with tag 1"),
        (
            [[recv(1, 1, 8), send(2, 1, 8, 1)], [recv(1, 0, 8), send(2, 0, 8, 1)]],
            "C3.*trace.0.et: node 2.*trace.1.et: node 2",
        ),
        (
            [
                [coll(1, ALL_REDUCE, 8), coll(2, ALL_REDUCE, 8, 1, pg_name="1")],
                [coll(2, ALL_REDUCE, 8, pg_name="1"), coll(1, ALL_REDUCE, 8, 2)],
            ],
            "C3",
        ),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(
    ranks: list[list[Node]], says: str, tmp_path: Path
) -> None:
    groups = {"1": [1, 0]} if says == "C3" else PG
    complaint = refused(tmp_path, ranks, groups=groups)
    assert re.search(says, complaint, re.DOTALL), complaint


def test_groups_that_leave_ranks_which_make_none_of_that_size_are_refused(tmp_path: Path) -> None:
    ranks = [[coll(1, ALL_GATHER, 64, pg_name="1")]] * 2 + [[comp(1, us=3)]]
    assert "C7" in refused(tmp_path, ranks, groups=PG)
    # an all-reduce takes groups of any sizes
    ranks = [[coll(1, ALL_REDUCE, 64, pg_name="1")]] * 2 + [[comp(1, us=3)]]
    assert len(compiled(tmp_path / "..", ranks, groups=PG)) == 2


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"1": 5}', '{"1": []}', '{"1": [0, 0]}', '{"1": [0, 9]}', '{"1": ["0"]}'],
)
def test_a_wrong_file_of_groups_is_refused(text: str, tmp_path: Path) -> None:
    path = messages.write(tmp_path / "traces", [[comp(1)]] * 2)
    groups = tmp_path / "groups.json"
    groups.write_text(text)
    with pytest.raises(CompileError, match="chakra-C4") as caught:
        ncc_compiler.compile_trace(path, comm_groups=groups)
    assert "groups.json" in str(caught.value)


def test_a_small_file_that_unpacks_to_a_large_one_takes_no_more_than_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_FILE_BYTES", 1 << 20)
    (tmp_path / "t.0.et").write_bytes(gzip.compress(bytes(1 << 26)))
    with pytest.raises(OSError, match="more than 1048576 bytes"):
        ncc_compiler.compile_trace(tmp_path)


def test_long_chains_and_many_free_messages_take_no_long_time(tmp_path: Path) -> None:
    chain = [comp(k, *((k - 1,) if k else ()), us=1) for k in range(5000)]
    free = [[send(k, 1, 64) for k in range(1000)], [recv(k, 0, 64) for k in range(1000)]]
    started = time.process_time()
    read_programs(messages.write(tmp_path / "chain", [chain] * 2))
    read_programs(messages.write(tmp_path / "free", free))
    assert time.process_time() - started < 20


def test_thousands_of_free_messages_of_two_ranks_take_seconds(tmp_path: Path) -> None:
    count = 20_000
    ranks = [
        [send(number, 1, 64) for number in range(count)],
        [recv(number, 0, 64) for number in range(count)],
    ]
    trace = files.read_trace(Path(messages.write(tmp_path / "traces", ranks)), "trace")
    began_s = time.process_time()
    ordered_ranks = meetings.ordered(trace)
    assert time.process_time() - began_s < 10
    assert len(ordered_ranks.meetings) == count


def metadata(number: int, *data: int) -> Node:
    return Node(number, f"metadata{number}", METADATA, data)


MANY = 1_000
BETWEEN = {
    "one node joins many for many": [
        *(comp(number) for number in range(MANY)),
        metadata(MANY, *range(MANY)),
        *(comp(number, MANY) for number in range(MANY + 1, 2 * MANY)),
    ],
    "many are behind a long chain": [
        comp(0),
        *(metadata(number, number - 1) for number in range(1, MANY)),
        *(comp(number, MANY - 1) for number in range(MANY, 2 * MANY)),
    ],
}


@pytest.mark.parametrize("what", BETWEEN)
def test_dependencies_that_multiply_through_metadata_are_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_DEPENDENCIES", 100_000)
    complaint = refused(tmp_path, [BETWEEN[what]])
    assert re.search(r"chakra-C2.*trace.0.et: node 1\d\d\d \(comp1\d\d\d\)", complaint)
    assert "more than 100,000 dependencies" in complaint


def test_a_node_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    complaint = refused(tmp_path, [[comp(0), Node(1, "x" * (17 << 20))]])
    assert re.search(r"chakra-C1.*trace.0.et: message 2 has 17,825,\d\d\d bytes", complaint)


def test_more_dependencies_than_are_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_DEPENDENCIES", 9)
    ranks = [[comp(number, *range(number), us=rank) for number in range(4)] for rank in range(2)]
    complaint = refused(tmp_path, ranks)  # six of each rank
    assert re.search(r"chakra-C1.*trace.1.et.*more than 9 dependencies", complaint)
