"""What a rank has no room for is refused while placing: memory, streams, operands."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError, LoweringError
from ncc_runtime.lowering import capacity
from ncc_runtime.lowering.capacity import check_channels, rank_capacity
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import PlaceOptions, place_on
from tests.programs import collective_program

SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"


def streams(count: int) -> ncc_compiler.Neff:
    """A program of all-reduces on so many streams."""
    lines = [
        f" r{k} = f32[4] all-reduce(x), replica_groups={{}}, to_apply=sum, "
        f'frontend_attributes={{stream_id="{k}"}}'
        for k in range(count)
    ]
    kinds, names = ", ".join(["f32[4]"] * count), ", ".join(f"r{k}" for k in range(count))
    root = f" ROOT all = ({kinds}) tuple({names})"
    body = "\n".join([" x = f32[4] parameter(0)", *lines, root])
    header = "HloModule streams, replica_count=2\n"
    return ncc_compiler.compile_text(f"{header}{SUM}ENTRY e {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("count", "topology", "lnc", "there", "advice"),
    [
        (4, "trn1", None, 3, ": let stream_id have at most 3 values in the model"),
        (3, "trn2", 1, 2, ": place it at lnc 2, or let stream_id have at most 2 values"),
        (4, "trn2", 1, 2, ": place it at lnc 2, or let stream_id"),
    ],
)
def test_more_streams_than_cc_cores_are_refused_with_advice(
    count: int, topology: str, lnc: int | None, there: int, advice: str
) -> None:
    with pytest.raises(LoweringError) as refusal:
        ncc_runtime.load(streams(count), topology, lnc=lnc)
    message = str(refusal.value)
    assert f"use {count} streams, 0 (r0), 1 (r1), 2 (r2)" in message
    assert f"has {there} CC-cores, one for each stream at most{advice}" in message


@pytest.mark.parametrize(
    ("count", "topology", "lnc"), [(3, "trn1", None), (2, "trn2", 1), (4, "trn2", 2)]
)
def test_as_many_streams_as_cc_cores_run(count: int, topology: str, lnc: int | None) -> None:
    run = ncc_runtime.load(streams(count), topology, lnc=lnc).run([np.ones((2, 4), np.float32)])
    assert [one.tolist() for one in run.outputs] == [[[2.0] * 4] * 2] * count


def test_a_collective_of_very_many_operands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "MOST_OPERANDS", 16)  # a program of 16,385 takes half a minute
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [1] * 17)
    placement = place_on(PlaceOptions("trn2"), 2)
    with pytest.raises(LoweringError, match="has 17 operands, at most 16 are filled"):
        lower(program, placement, {})


TEXT = """HloModule large, replica_count=2
sum { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }
ENTRY e {
 w = f32[1000,1000] parameter(0)
 x = f32[1000,1000] parameter(1)
 y = f32[1000,1000] dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 z = f32[2000,1000] concatenate(y, y), dimensions={0}, metadata={source_file="m.py" source_line=13}
 s = f32[2000,1000] all-reduce(z), replica_groups={}, to_apply=sum
 n = f32[2000,1000] negate(s)
 ROOT r = f32[10,1000] slice(n), slice={[0:10], [0:1000]}
}
"""


@pytest.fixture
def large(tmp_path: Path) -> str:
    path = tmp_path / "large.neff"
    ncc_compiler.compile_text(TEXT, CompileOptions(level=0)).save(path)
    return str(path)


def topology(folder: Path, stack_bytes: int) -> str:
    """Instances with stacks of so many bytes, one for each rank."""
    path = folder / "little.toml"
    path.write_text(
        'name = "little"\nbase = "trn2.48xlarge"\n[hbm]\n'
        f'stack_bytes = {{value = {stack_bytes}, source = "assumed"}}\n'
    )
    return str(path)


def test_a_program_that_does_not_fit_says_what_it_needs(large: str, tmp_path: Path, capsys) -> None:
    assert main(["run", large, "--topology", topology(tmp_path, 18_000_000)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: HBM of 17.2 MiB a rank: parameters 7.6 MiB, outputs 39.1 KiB, temporaries "
        "11.4 MiB, in all 19.1 MiB (111 %), 1.9 MiB too much (little at lnc 2)",
        "  largest: parameters w and 1 more of 3.8 MiB each; temporary z (m.py:13) of 7.6 MiB; "
        "temporary n of 7.6 MiB; temporary y of 3.8 MiB; output r of 39.1 KiB",
        "  would help: 4 ranks instead of 2, where what is sharded is divided further",
        "  would help: perhaps another -O level: nccc compile says what temporaries take",
        "  would help: trn2-ultraserver, trn2.3xlarge, trn2.48xlarge, trn2u.48xlarge at lnc 1: a "
        "rank has 12 GiB",
        "  would help: inf2.24xlarge, inf2.48xlarge, inf2.8xlarge, inf2.xlarge, trn1.2xlarge, "
        "trn1.32xlarge, trn1n.32xlarge at lnc 1: a rank has 16 GiB",
        "  would help: trn3-gen1-ultraserver, trn3-gen2-ultraserver at lnc 1: a rank has 18 GiB",
        "  --ignore-memory times it all the same (nccrt run: with --no-values)",
    ]


def text_of(rows: int, ranks: int, columns: int = 1 << 20) -> str:
    """A program of one parameter of f32, which it returns negated."""
    return (
        f"HloModule big, replica_count={ranks}\nENTRY e {{\n x = f32[{rows},{columns}] parameter(0)"
        f"\n ROOT n = f32[{rows},{columns}] negate(x)\n}}\n"
    )


@pytest.mark.parametrize(
    ("rows", "place", "advice"),
    [
        # 15.6 GiB of 12: lnc 2 has 24, and takes two instances
        (2000, {"lnc": 1}, "would help: 2 x trn2.48xlarge at lnc 2: a rank has 24 GiB"),
        # 25 GiB: no more than trn3 has
        (3200, {}, "trn3-gen2-ultraserver at lnc 2: a rank has 36 GiB"),
        (5000, {}, "would help: 256 ranks instead of 128, where what is sharded"),
    ],
)
def test_places_are_named_only_where_a_rank_has_room_and_all_ranks_fit(
    rows: int, place: dict[str, int], advice: str
) -> None:
    neff = ncc_compiler.compile_text(text_of(rows, 128))
    with pytest.raises(LoweringError) as refusal:
        ncc_runtime.load(neff, "trn2.48xlarge", **place)
    lines = str(refusal.value).splitlines()
    assert advice in "\n".join(lines)
    size = 2 * rows * (4 << 20)
    for line in lines:
        if "a rank has" in line:
            room = int(line.rsplit(" ", 2)[1]) << 30
            names, lnc = line.split("help: ")[1].split(": ")[0].split(" at lnc ")
            assert room >= size
            for name in names.split(", "):
                there = ncc_runtime.load(neff, name.rpartition(" x ")[2], lnc=int(lnc))
                assert there.executable.hbm_bytes == size


def test_it_is_timed_all_the_same_where_memory_is_ignored(
    large: str, tmp_path: Path, capsys
) -> None:
    little = topology(tmp_path, 18_000_000)
    command = ["run", large, "--no-values", "--ignore-memory", "--topology"]
    assert main([*command, little]) == 0
    out = capsys.readouterr().out
    assert "HBM of 17.2 MiB a rank: " in out
    assert "too much, ignored\n" in out
    assert "proved: well-formed" in out
    assert main([*command, little, "--json"]) == 0
    ignored = json.loads(capsys.readouterr().out)
    assert main([*command, "trn2", "--json"]) == 0
    fitting = json.loads(capsys.readouterr().out)
    assert (ignored["memory_ignored"], fitting["memory_ignored"]) == (True, False)
    assert ignored["time_us"] == fitting["time_us"]


def test_memory_is_ignored_only_without_values(large: str, tmp_path: Path, capsys) -> None:
    little = topology(tmp_path, 18_000_000)
    assert main(["run", large, "--ignore-memory", "--topology", little]) == 2
    assert "--ignore-memory goes with --no-values" in capsys.readouterr().err
    model = ncc_runtime.load(large, little, ignore_memory=True)
    with pytest.raises(InputError, match="run it with --no-values"):
        model.run(seed=0)


def test_where_it_fits_ignoring_memory_changes_nothing(large: str) -> None:
    model = ncc_runtime.load(large, ignore_memory=True)
    assert not model.executable.ignores_memory
    expected = ncc_runtime.load(large).run(seed=0)
    found = model.run(seed=0)
    assert np.array_equal(found.outputs[0], expected.outputs[0])


@pytest.mark.parametrize("command", ["list", "verify", "explain"])
def test_other_commands_place_it_too(command: str, large: str, tmp_path: Path, capsys) -> None:
    little = topology(tmp_path, 18_000_000)
    assert main([command, large, "--topology", little]) == 1
    assert main([command, large, "--topology", little, "--ignore-memory"]) == 0
    capsys.readouterr()


def test_channel_buffers_that_do_not_fit_are_told_apart_from_the_program(large: str) -> None:
    program = ncc_runtime.load(large).executable.program
    placement = place_on(PlaceOptions("trn2"), 2)
    executable = lower(program, placement, {"all-reduce": "ring"})
    assert executable.hbm_bytes > program.hbm_bytes
    room = rank_capacity(placement.topology)
    check_channels(program, placement.topology, room)
    with pytest.raises(LoweringError) as refusal:
        check_channels(program, placement.topology, room + (1 << 30))
    message = str(refusal.value)
    assert message.startswith(
        "HBM of 24 GiB a rank: parameters 7.6 MiB, outputs 39.1 KiB, temporaries 11.4 MiB, channel "
        "buffers 25.0 GiB, in all 25.0 GiB (104 %), 1.0 GiB too much (trn2.48xlarge at lnc 2)\n"
    )
    assert "would help: channel buffers of 24.0 GiB or less: another --algorithm\n" in message
    assert "ranks instead of" not in message


def test_streams_are_counted_for_each_program_of_a_rank() -> None:
    """Two programs of two streams each, all different, need two CC-cores a rank."""
    stages = []
    for first in (0, 2):
        lines = [
            f" r{k} = f32[4] all-reduce(x), replica_groups={{{{0,1}},{{2,3}}}}, to_apply=sum, "
            f"channel_id={k + 1}, use_global_device_ids=true, "
            f'frontend_attributes={{stream_id="{k}"}}'
            for k in (first, first + 1)
        ]
        root = f" ROOT t = (f32[4], f32[4]) tuple(r{first}, r{first + 1})"
        body = "\n".join([" x = f32[4] parameter(0)", *lines, root])
        text = f"HloModule m{first}, num_partitions=4\n{SUM}ENTRY e {{\n{body}\n}}\n"
        stages.append((ncc_compiler.compile_text(text), range(first, first + 2)))
    model = ncc_runtime.load(stages, "trn2", lnc=1)
    assert {proof.verdict for proof in model.proofs} == {"proved"}
