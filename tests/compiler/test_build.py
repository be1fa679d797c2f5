"""Names, ranks and entry: from a syntax tree to the graph."""

import pytest

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.collectives import rank_groups, rank_pairs
from ncc_compiler.ir.graph import Callee, Raw, SourceTargetPairs
from ncc_compiler.ir.text.build import build_module, source_frame
from ncc_compiler.syntax.parse import parse
from ncc_runtime.neff.shared.groups import ExplicitGroups, IotaGroups
from tests.compiler.reading import SUM, complaints, load, messages, node

X = "x = f32[4] parameter(0)\n"


def test_definitions_may_come_in_any_order() -> None:
    module = load("ROOT y = f32[4] negate(z)\nz = f32[4] negate(x)\n" + X)
    assert [one.name for one in module.entry_computation.nodes] == ["x", "z", "y"]
    assert module.entry_computation.nodes[module.entry_computation.root].name == "y"


def test_text_order_is_kept_where_it_is_right() -> None:
    module = load("b = f32[] parameter(1)\na = f32[] parameter(0)\nc = f32[] negate(a)\n")
    assert [one.name for one in module.entry_computation.nodes] == ["b", "a", "c"]


def test_callees_come_before_callers() -> None:
    text = "ENTRY main {\n x = f32[] parameter(0)\n y = f32[] call(x), to_apply=f\n}\n"
    text += "f {\n a = f32[] parameter(0)\n}\n"
    assert list(load(text).computations) == ["f", "main"]


def test_a_long_chain_in_reverse_order_needs_no_recursion() -> None:
    lines = [f"v{k} = f32[4] negate(v{k + 1})" for k in range(5000)]
    text = "\n".join(["ROOT r = f32[4] negate(v0)", *lines, "v5000 = f32[4] parameter(0)"])
    assert len(load(text).entry_computation.nodes) == 5002


def test_unknown_attributes_are_kept_as_written() -> None:
    module = load('x = f32[4] parameter(0), sharding={devices=[2]<=[2]}, mhlo.note="a, b"\n')
    attributes = node(module, "x").attributes
    assert attributes["sharding"] == Raw("{devices=[2]<=[2]}")
    assert attributes["mhlo.note"] == Raw('"a, b"')


def test_header_attributes_are_kept() -> None:
    module = load("HloModule m, is_scheduled=true, num_partitions=2\n" + X)
    assert (module.name, module.attributes) == ("m", {"is_scheduled": Raw("true")})


def test_defaults_are_filled_in() -> None:
    text = SUM + X + "y = f32[4] all-reduce(x), to_apply=sum\n"
    attributes = node(load(text), "y").attributes
    assert attributes == {"replica_groups": ExplicitGroups(()), "to_apply": Callee("sum")}


def test_older_metadata_gives_a_source_location() -> None:
    module = load('x = f32[] parameter(0), metadata={op_name="x" source_file="a.py" source_line=3}')
    frame = source_frame(module, node(module, "x"))
    assert frame is not None
    assert (frame.file, frame.line) == ("a.py", 3)


def test_stack_frame_id_gives_a_source_location() -> None:
    text = 'FileNames\n1 "a.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
    text += "1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=3}\n\n"
    text += "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n"
    module = load(text + "x = f32[] parameter(0), metadata={stack_frame_id=1}\n")
    frame = source_frame(module, node(module, "x"))
    assert frame is not None
    assert (frame.file, frame.function, frame.line, frame.parent) == ("a.py", "f", 7, 0)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("y = f32[4] negate(q)\n", "2:19 name-C1"),
        ("x = f32[4] negate(x)\n", "2:1 name-C2"),
        ("y = f32[4] negate(y)\n", "2:19 name-C3"),
        ("y = f32[4] frobnicate(x)\n", "2:12 op-C1"),
        ("y = f32[4,4] broadcast(x)\n", "2:14 broadcast-C1"),
        ("y = f32[4] transpose(x), dimensions={a}\n", "2:37 attribute-C1"),
        ("y = f32[4] transpose(x), dimensions={0}, dimensions={0}\n", "2:42 attribute-C2"),
        ("y = f32[4] all-to-all(x), dimensions={0}, replica_group={{0}}\n", "2:43 attribute-C3"),
        ("y = f23[4] negate(x)\n", "2:5 type-C1"),
        ("y = f32[a] negate(x)\n", "2:9 type-C2"),
        ("y = f32[<=4] negate(x)\n", "2:9 type-C2"),
        (f"y = {'(' * 40}f32[]{')' * 40} tuple(x)\n", "2:5 type-C3"),
        ("y = f32[4000000000,4000000000] negate(x)\n", "2:9 type-C4"),
        (f"y = f32[{'1,' * 32}1] reshape(x)\n", "2:9 type-C5"),
        ("y = f32[4] call(x), to_apply=g\n", "2:30 computation-C2"),
        ("ROOT y = f32[4] negate(x)\nROOT z = f32[4] negate(x)\n", "3:6 computation-C4"),
        ("y = f32[4] constant()\n", "2:12 op-C3"),
        ("y = f32[] parameter(p)\n", "2:21 attribute-C1"),
        ("y = (f32[4]) constant(1)\n", "2:23 literal-C1"),
    ],
)
def test_fault_is_found_at_its_place(text: str, wrong: str) -> None:
    assert complaints(X + text) == [wrong]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "1:1 computation-C1"),
        (
            "f {\n a = f32[] parameter(0)\n b = call(a), to_apply=h\n}\n"
            "g {\n a = f32[] parameter(0)\n}\nh {\n a = f32[] parameter(0)\n}\n",
            "1:1 computation-C1",
        ),
        (
            "ENTRY a {\n x = f32[] parameter(0)\n}\nENTRY b {\n x = f32[] parameter(0)\n}\n",
            "4:7 computation-C1",
        ),
        (
            "f {\n a = f32[] parameter(0)\n b = f32[] call(a), to_apply=f\n}\n",
            "3:30 computation-C3",
        ),
        ("ENTRY f () -> f32[] {\n a = f32[] parameter(0)\n}\n", "1:7 computation-C5"),
        ("ENTRY f (a: f32[2]) -> f32[] {\n a = f32[] parameter(0)\n}\n", "1:13 computation-C5"),
        ("ENTRY f {\n}\n", "1:7 computation-C7"),
        ("ENTRY f {\n a = f32[] parameter(0)\n}\nf {\n a = f32[] parameter(0)\n}\n", "4:1 name-C2"),
        (
            "StackFrames\n1 {file_location_id=3 parent_frame_id=1}\nx = f32[] parameter(0)\n",
            "2:1 frames-C1",
        ),
        ("HloModule m, num_partitions=0\n" + X, "1:29 ranks-C1"),
        ("HloModule m, replica_cout=2\n" + X, "1:14 attribute-C3"),
        ("HloModule m, is_scheduled=true, is_scheduled=true\n" + X, "1:33 attribute-C2"),
        ("HloModule m, num_partitions=2000, replica_count=2000\n" + X, "1:14 ranks-C1"),
        (
            X + "y = f32[4] collective-permute(x), source_target_pairs={{0,9999999}}\n",
            "2:12 ranks-C3",
        ),
    ],
)
def test_fault_of_the_file_is_found_at_its_place(text: str, wrong: str) -> None:
    assert complaints(text) == [wrong]


def test_near_names_are_suggested() -> None:
    assert "did you mean transpose?" in messages(X + "y = f32[4] transpos(x)\n")


def test_users_of_a_broken_line_are_not_blamed() -> None:
    assert complaints(X + "y = f32[4] add(x, $\nz = f32[4] negate(y)\n") == ["2:19 syntax-C1"]


def test_users_of_a_wrong_line_are_checked_by_its_declared_type() -> None:
    assert complaints(X + "y = f32[4] nagate(x)\nz = f32[5] negate(y)\n") == [
        "2:12 op-C1",
        "3:5 op-C5",
    ]


def test_build_alone_gives_the_graph_and_what_is_wrong_with_the_names() -> None:
    file, _ = parse(Source("t.ir", X))
    module, found = build_module(file, None)
    assert module is not None
    assert (module.ranks, found) == (1, ())


class TestRanks:
    def test_header_counts_multiply(self) -> None:
        module = load("HloModule m, replica_count=2, num_partitions=4\n" + X)
        assert (module.replica_count, module.num_partitions, module.ranks) == (2, 4, 8)

    def test_without_header_the_largest_id_counts(self) -> None:
        text = X + "y = f32[4] collective-permute(x), source_target_pairs={{0,5}}\n"
        assert load(text).ranks == 6

    def test_iota_groups_count_too(self) -> None:
        text = X + "y = f32[16] all-gather(x), dimensions={0}, replica_groups=[2,4]<=[8]\n"
        assert load(text).ranks == 8

    def test_a_program_without_ids_has_as_many_ranks_as_asked_for(self) -> None:
        assert (load(X).ranks, load(X, ranks=16).ranks) == (1, 16)

    def test_more_ranks_than_ids_may_be_asked_for(self) -> None:
        text = X + "y = f32[4] collective-permute(x), source_target_pairs={{0,1}}\n"
        assert load(text, ranks=4).ranks == 4

    def test_fewer_ranks_than_ids_are_refused(self) -> None:
        text = X + "y = f32[4] collective-permute(x), source_target_pairs={{0,5}}\n"
        assert complaints(text, ranks=4) == ["2:12 ranks-C2"]

    def test_ranks_against_the_header_are_refused(self) -> None:
        assert complaints("HloModule m, num_partitions=2\n" + X, ranks=4) == ["1:14 ranks-C2"]

    def test_without_header_a_group_means_ranks(self) -> None:
        text = SUM + X + "y = f32[4] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=sum\n"
        module = load(text)
        assert rank_groups(module, node(module, "y")) == ((0, 1), (2, 3))

    def test_it_does_so_beside_partition_id(self) -> None:
        text = SUM + X + "p = u32[] partition-id()\n"
        text += "y = f32[4] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=sum\n"
        module = load(text)
        assert (module.replica_count, module.num_partitions) == (1, 4)
        assert rank_groups(module, node(module, "y")) == ((0, 1), (2, 3))

    def test_it_does_so_beside_a_permute_with_a_channel(self) -> None:
        text = X + "y = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{0,3}}\n"
        text += "z = f32[16] all-gather(y), dimensions={0}\n"
        module = load(text)
        assert rank_pairs(module, node(module, "y")) == ((0, 3),)
        assert rank_groups(module, node(module, "z")) == ((0, 1, 2, 3),)

    def test_with_header_the_mode_of_xla_counts(self) -> None:
        text = "HloModule m, replica_count=2, num_partitions=2\n" + X
        text += "y = f32[8] all-gather(x), dimensions={0}, replica_groups={{0,1}}\n"
        module = load(text)
        assert rank_groups(module, node(module, "y")) == ((0, 2), (1, 3))


def test_every_spelling_of_groups_is_read() -> None:
    text = "HloModule m, num_partitions=4\n" + X
    common = "all-gather(x), dimensions={0}, channel_id=1, use_global_device_ids=true"
    text += f"a = f32[8] {common}, replica_groups={{{{0,1}},{{2,3}}}}\n"
    text += f"b = f32[8] {common}, replica_groups=[2,2]<=[2,2]T(1,0)\n"
    text += f"c = f32[8] {common}, replica_groups=mesh['a'=2,'b'=2] {{'b'}}\n"
    module = load(text)
    assert node(module, "b").attributes["replica_groups"] == IotaGroups((2, 2), (2, 2), (1, 0))
    assert rank_groups(module, node(module, "b")) == ((0, 2), (1, 3))
    assert rank_groups(module, node(module, "c")) == ((0, 1), (2, 3))


def test_pairs_are_read() -> None:
    text = X + "y = f32[4] collective-permute(x), source_target_pairs={{0,1}, {1,0}}\n"
    assert node(load(text), "y").attributes["source_target_pairs"] == SourceTargetPairs(
        ((0, 1), (1, 0))
    )
