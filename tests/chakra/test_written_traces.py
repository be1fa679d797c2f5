"""`nccrt run --chakra`: what a run becomes as execution traces, read by code of the tests' own."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import InputError, StallError
from ncc_runtime.neff.whole_file import whole_folder
from ncc_runtime.report.chakra import write as chakra_write
from ncc_runtime.report.run import Run
from tests.chakra import messages
from tests.chakra.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    COLL,
    COMP,
    RECV,
    REDUCE_SCATTER,
    SEND,
    Node,
)

ROOT = Path(__file__).parents[2]
ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"


def run_of(rows: str, ranks: int = 4, level: int = 1, **settings: object) -> Run:
    """A run of a program of rows, for times only."""
    source = f"HloModule m, replica_count={ranks}\n{ADD}ENTRY main {{\n{rows}\n}}\n"
    neff = ncc_compiler.compile_text(source, CompileOptions(level=level))
    return ncc_runtime.load(neff, "trn2").run(values=False, **settings)


def written(run: Run, folder: Path, times: str = "alone") -> list[list[Node]]:
    """The nodes of every rank."""
    run.write_chakra(folder / "traces", times)
    return messages.read_all(folder / "traces")


def by_name(nodes: list[Node]) -> dict[str, Node]:
    return {node.name: node for node in nodes}


SUM = """
  x = f32[1000] parameter(0)
  y = f32[1000] exponential(x)
  s = f32[1000] all-reduce(y), replica_groups={{0,1},{2,3}}, to_apply=add
  ROOT r = f32[1000] negate(s)
"""


def test_a_rank_has_a_file_of_the_version_of_the_schema(tmp_path: Path) -> None:
    run_of(SUM).write_chakra(tmp_path / "traces")
    files = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert files == [*(f"trace.{rank}.et" for rank in range(4)), "trace.comm_groups.json"]
    assert messages.read(tmp_path / "traces" / "trace.0.et")[0] == "1.0.0"


def test_a_trace_without_the_file_of_its_last_rank_is_refused(tmp_path: Path) -> None:
    every = "x = f32[9] parameter(0)\nROOT s = f32[9] all-reduce(x), to_apply=add"
    run_of(every).write_chakra(tmp_path / "traces")
    (tmp_path / "traces" / "trace.3.et").unlink()
    with pytest.raises(CompileError) as caught:
        ncc_compiler.compile_trace(tmp_path / "traces")
    message = caught.value.diagnostics[0].render()
    assert "chakra-C1" in message
    assert "trace.0.et: is of a trace of 4 ranks, and there are files of 3" in message


def test_a_collective_says_what_it_is_between_what_gives_and_takes_its_data(
    tmp_path: Path,
) -> None:
    for rank, nodes in enumerate(written(run_of(SUM), tmp_path)):
        exp, total, neg = nodes
        assert [node.kind for node in nodes] == [COMP, COLL, COMP], rank
        assert (total.data, neg.data) == ((exp.id,), (total.id,))
        facts = total.attributes
        assert (facts["comm_type"], facts["comm_size"], facts["pg_name"]) == (
            ALL_REDUCE,
            4000,
            "12"[rank // 2],
        )
        assert all(node.attributes["is_cpu_op"] is False for node in nodes)


def test_process_groups_stand_in_a_file_beside(tmp_path: Path) -> None:
    written(run_of(SUM), tmp_path)
    groups = json.loads((tmp_path / "traces" / "trace.comm_groups.json").read_text())
    assert groups == {"1": [0, 1], "2": [2, 3]}


def test_a_group_of_all_ranks_in_order_needs_no_name(tmp_path: Path) -> None:
    rows = SUM.replace("{{0,1},{2,3}}", "{{0,1,2,3}}")
    nodes = written(run_of(rows), tmp_path)
    assert "pg_name" not in by_name(nodes[0])["s"].attributes
    assert (tmp_path / "traces" / "trace.comm_groups.json").read_text().strip() == "{}"


def test_another_order_of_all_ranks_is_a_group(tmp_path: Path) -> None:
    rows = SUM.replace("{{0,1},{2,3}}", "{{0,2,1,3}}")
    assert by_name(written(run_of(rows), tmp_path)[0])["s"].attributes["pg_name"] == "1"


@pytest.mark.parametrize(
    ("row", "op", "size"),
    [
        ("all-gather(y), replica_groups={{0,1,2,3}}, dimensions={0}", ALL_GATHER, 4000),
        (
            "reduce-scatter(y), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add",
            REDUCE_SCATTER,
            4000,
        ),
    ],
)
def test_a_size_is_that_of_what_a_rank_gives(row: str, op: int, size: int, tmp_path: Path) -> None:
    elements = {ALL_GATHER: 4000, REDUCE_SCATTER: 250}[op]
    rows = (
        f"x = f32[1000] parameter(0)\ny = f32[1000] exponential(x)\nROOT s = f32[{elements}] {row}"
    )
    facts = by_name(written(run_of(rows), tmp_path)[0])["s"].attributes
    assert (facts["comm_type"], facts["comm_size"]) == (op, size)


def test_a_permute_becomes_messages_whose_sides_name_each_other(tmp_path: Path) -> None:
    rows = """
      x = f32[1000] parameter(0)
      p = f32[1000] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,0}}
      ROOT r = f32[1000] negate(p)
    """
    ranks = written(run_of(rows), tmp_path)
    pairs = Counter[tuple[int, int, int, int, int]]()
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            if node.kind in (SEND, RECV):
                facts = node.attributes
                ends = facts["comm_src"], facts["comm_dst"]
                assert ends[node.kind == RECV] == rank
                pairs[(*ends, facts["comm_tag"], facts["comm_size"], node.kind)] += 1
    expected = {(a, b, 0, 4000, kind) for a, b in ((0, 1), (1, 2), (2, 0)) for kind in (SEND, RECV)}
    assert set(pairs) == expected
    assert set(pairs.values()) == {1}
    # rank 3 gets zeros from nobody: its negation waits for nothing
    assert [(node.name, node.data, node.control) for node in ranks[3]] == [("r", (), ())]
    assert ranks[0][-1].data == (1, 2)


def test_a_rank_that_sends_to_itself_moves_memory(tmp_path: Path) -> None:
    rows = "x = f32[8] parameter(0)\n"
    rows += "ROOT p = f32[8] collective-permute(x), source_target_pairs={{0,0},{1,2}}"
    nodes = written(run_of(rows), tmp_path)
    (own,) = nodes[0]
    assert (own.kind, own.attributes["tensor_size"]) == (COMP, 64)
    assert [node.kind for node in nodes[1]] == [SEND]


def test_loops_are_unrolled_as_often_as_they_ran(tmp_path: Path) -> None:
    rows = """
      x = f32[64] parameter(0)
      zero = s32[] constant(0)
      start = (s32[], f32[64]) tuple(zero, x)
      w = (s32[], f32[64]) while(start), condition=less, body=next
      ROOT r = f32[64] get-tuple-element(w), index=1
    """
    computations = """
    less { s = (s32[], f32[64]) parameter(0) i = s32[] get-tuple-element(s), index=0
      k = s32[] constant(3) ROOT p = pred[] compare(i, k), direction=LT }
    next { s = (s32[], f32[64]) parameter(0) i = s32[] get-tuple-element(s), index=0
      v = f32[64] get-tuple-element(s), index=1 one = s32[] constant(1) j = s32[] add(i, one)
      t = f32[64] all-reduce(v), replica_groups={{0,1}}, to_apply=add
      ROOT o = (s32[], f32[64]) tuple(j, t) }
    """
    source = f"HloModule m, replica_count=2\n{ADD}{computations}ENTRY main {{\n{rows}\n}}\n"
    run = ncc_runtime.load(ncc_compiler.compile_text(source), "trn2").run(values=False)
    nodes = written(run, tmp_path)[0]
    sums = [node for node in nodes if node.kind == COLL]
    assert len(sums) == 3
    before = {node.id: {*node.data, *node.control} for node in nodes}
    for one, other in itertools.pairwise(sums):
        assert one.id in reachable(before, other.id)


def reachable(before: dict[int, set[int]], node: int) -> set[int]:
    """All that comes before a node."""
    found, pending = set[int](), [node]
    while pending:
        for dep in before[pending.pop()] - found:
            found.add(dep)
            pending.append(dep)
    return found


def test_a_trace_longer_than_can_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chakra_write, "MOST_NODES", 4)
    with pytest.raises(InputError, match=r"performs 3 instructions.*may be 2:.*--trip-count"):
        run_of(SUM).write_chakra(tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_dependencies_hold_in_the_run_and_queues_are_in_order(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    for nodes in written(run, tmp_path, "run"):
        ends = {node.id: node.start_us + node.us for node in nodes}
        for node in nodes:
            assert all(ends[dep] <= node.start_us for dep in (*node.data, *node.control))
        before = {node.id: {*node.data, *node.control} for node in nodes}
        last: dict[str, int] = {}
        for node in nodes:
            place = node.attributes.get("ncc_engine") or f"stream {node.attributes['stream']}"
            if place in last:
                assert last[place] in reachable(before, node.id)
            last[place] = node.id


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    for nodes in written(run, tmp_path):
        before = {node.id: {*node.data, *node.control} for node in nodes}
        for node in nodes:
            assert not set(node.data) & set(node.control)
            for dep in node.control:
                others = before[node.id] - {dep}
                assert all(dep not in reachable(before, other) for other in others)


def test_durations_alone_are_those_of_the_cost_model_and_add_up(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp8.hlo")
    nodes = written(ncc_runtime.load(neff, "trn2").run(values=False), tmp_path)[0]
    exact, rounded = Counter[str](), Counter[str]()
    for node in nodes:
        assert node.start_us == 0
        if node.kind == COMP:
            exact[node.attributes["ncc_engine"]] += node.attributes["ncc_duration_ps"]
            rounded[node.attributes["ncc_engine"]] += node.us
        else:
            assert "ncc_duration_ps" not in node.attributes
    assert all(abs(rounded[engine] * 10**6 - exact[engine]) < 10**6 for engine in exact)


def test_times_of_the_run_include_what_sharing_added(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp8.hlo")
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    assert run.trace is not None
    ranks = written(run, tmp_path, "run")
    ends = [
        1_000_000 * node.start_us + node.attributes["ncc_duration_ps"]
        for nodes in ranks
        for node in nodes
    ]
    assert max(ends) == pytest.approx(run.trace.time_ps, abs=10**6)
    assert all(node.us for nodes in ranks for node in nodes if node.kind == COLL)


def test_without_times_there_are_none(tmp_path: Path) -> None:
    for nodes in written(run_of(SUM), tmp_path, "none"):
        assert all(node.us == node.start_us == 0 for node in nodes)
        assert all("ncc_duration_ps" not in node.attributes for node in nodes)


def test_work_is_counted_as_the_file_has_it(tmp_path: Path) -> None:
    rows = """
      x = f32[128,256] parameter(0)
      w = f32[256,64] parameter(1)
      d = f32[128,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT e = f32[128,64] exponential(d)
    """
    nodes = by_name(written(run_of(rows, level=0), tmp_path)[0])
    product, exp = nodes["d"].attributes, nodes["e"].attributes
    flops, elements = 2 * 128 * 256 * 64, 128 * 64
    assert product["num_ops"] - product["ncc_elements"] == flops
    assert product["ncc_dtype"] == "f32"
    assert product["tensor_size"] >= (128 * 256 + 256 * 64 + 128 * 64) * 4
    assert (exp["num_ops"], exp["ncc_elements"]) == (elements, elements)
    assert (exp["ncc_engine"], product["ncc_engine"]) == ("Scalar", "Tensor")


def test_a_slow_core_has_longer_instructions(tmp_path: Path) -> None:
    source = f"HloModule m, replica_count=4\n{ADD}ENTRY main {{\n{SUM}\n}}\n"
    neff = ncc_compiler.compile_text(source)
    run = ncc_runtime.load(neff, "trn2", slow=["c0.core0=50%"]).run(values=False)
    slow, fast = written(run, tmp_path)[:2]
    for one, other in zip(slow, fast, strict=True):
        if one.kind == COMP:
            ps = other.attributes["ncc_duration_ps"]
            assert one.attributes["ncc_duration_ps"] == 2 * ps


def test_pipeline_stages_have_nodes_of_their_own(tmp_path: Path) -> None:
    stages = [
        (ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{k}.ir"), ranks)
        for k, ranks in enumerate((range(4), range(4, 8)))
    ]
    ranks = written(ncc_runtime.load(stages, "trn2").run(values=False), tmp_path)
    kinds = [Counter(node.kind for node in nodes) for nodes in ranks]
    assert kinds[:4] == kinds[:1] * 4
    assert kinds[4:] == kinds[4:5] * 4
    assert [kinds[0][kind] for kind in (COLL, SEND, RECV)] == [1, 1, 1]
    assert [kinds[4][kind] for kind in (COLL, SEND, RECV)] == [2, 1, 1]


def test_one_instance_that_stands_for_all_is_written_for_all(tmp_path: Path) -> None:
    rows = SUM.replace("{{0,1},{2,3}}", "[2,64]<=[128]")
    source = f"HloModule m, replica_count=128\n{ADD}ENTRY main {{\n{rows}\n}}\n"
    neff = ncc_compiler.compile_text(source)
    reduced = ncc_runtime.load(neff, "trn2", times_only=True)
    assert reduced.executable.representatives == 64
    run = reduced.run(values=False, verify=False)
    ranks = written(run, tmp_path)
    whole = tmp_path / "whole"
    ncc_runtime.load(neff, "trn2").run(values=False).write_chakra(whole)
    assert ranks == messages.read_all(whole)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = run_of(SUM)
    for name in ("one", "other"):
        run.write_chakra(tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def test_a_collective_of_variable_size_is_refused_by_name(tmp_path: Path) -> None:
    neff = ncc_compiler.compile_file(ROOT / "ir_examples/moe_dispatch.ir")
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    with pytest.raises(InputError, match=r"p\d+ \S+ is ragged-all-to-all.*slots of a fixed size"):
        run.write_chakra(tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_clock_has_no_trace(tmp_path: Path) -> None:
    source = f"HloModule m, replica_count=4\n{ADD}ENTRY main {{\n{SUM}\n}}\n"
    run = ncc_runtime.load(ncc_compiler.compile_text(source)).run(seed=0, clock=False)
    with pytest.raises(InputError, match="clock=True"):
        run.write_chakra(tmp_path / "traces")


def test_a_run_that_faults_keep_from_its_end_has_no_trace(tmp_path: Path) -> None:
    run = run_of(SUM, faults=["at 16us: rank 1 dead"])
    with pytest.raises(StallError):
        run.write_chakra(tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        run_of(SUM).write_chakra(folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "traces"

    def half_way() -> None:
        with whole_folder(target) as folder:
            (folder / "trace.0.et").write_bytes(b"half")
            assert not target.exists()
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space") as caught:
        half_way()
    assert caught.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


def test_the_next_writer_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    left = tmp_path / ".ncc-0123456789abcdef.tmp"
    left.mkdir()
    (left / "trace.0.et").write_bytes(b"half")
    run_of(SUM).write_chakra(tmp_path / "traces")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]
