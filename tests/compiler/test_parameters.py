"""What a compiled program keeps of its parameters: names, and which rank has which part."""

import numpy as np
import pytest

from ncc_compiler.codegen.parameters import sharding
from ncc_compiler.driver import compile_text
from ncc_runtime.neff.container import unpack
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import ArrayInfo, Program, Sharding


def program(parameter: str, replicas: int = 1, partitions: int = 8) -> Program:
    header = f"HloModule m, replica_count={replicas}, num_partitions={partitions}"
    text = f"{header}\nENTRY %m_spmd {{\n  %p = {parameter}\n  ROOT %n = f32[2,4] negate(%p)\n}}\n"
    return compile_text(text).program


@pytest.mark.parametrize(
    ("text", "tiles", "parts"),
    [
        ("devices=[8,1]<=[8]", (8, 1), range(8)),
        ("devices=[2,1,4]<=[8] last_tile_dim_replicate", (2, 1), [0, 0, 0, 0, 1, 1, 1, 1]),
        (
            "devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate",
            (1, 4),
            [0, 1, 2, 3, 0, 1, 2, 3],
        ),
        ("devices=[4,2]<=[2,4]T(1,0)", (4, 2), [0, 2, 4, 6, 1, 3, 5, 7]),
        ("devices=[4,2]7,6,5,4,3,2,1,0", (4, 2), range(7, -1, -1)),
        (
            "devices=[2,1,2,2]<=[8] last_tile_dims={replicated,replicated}",
            (2, 1),
            [0] * 4 + [1] * 4,
        ),
        ("mesh['a'=2,'b'=4],[{'a'},{}]", (2, 1), [0, 0, 0, 0, 1, 1, 1, 1]),
        ("mesh['a'=2,'b'=4],[{'b','a'},{}]", (8, 1), [0, 2, 4, 6, 1, 3, 5, 7]),
        ("mesh['a'=2,'b'=4],[{'a',?},{'b':(2)2}]", (2, 2), [0, 1, 0, 1, 2, 3, 2, 3]),
        ("mesh['a'=2,'b'=4],[{},{'b':(1)2}],replicated={'a'}", (1, 2), [0, 0, 1, 1, 0, 0, 1, 1]),
        ("mesh['a'=2,'b'=4],device_ids=([4,2]T(1,0)),[{'a'},{}]", (2, 1), [0, 1] * 4),
    ],
)  # fmt: skip
def test_every_form_of_a_sharding_says_who_has_which_part(text, tiles, parts):
    assert sharding(text, 1, 8) == Sharding(tiles, tuple(parts))
    assert sharding(text, 2, 8) == Sharding(tiles, tuple(parts) * 2)  # each replica has the whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "replicated",
        "manual",
        "maximal device=3",
        "unreduced",
        "devices=[1,1,8]<=[8] last_tile_dim_replicate",
        "devices=[2,1,4]<=[8] last_tile_dims={manual}",
        "devices=[2,1,4]<=[8] last_tile_dims={unreduced}",
        "devices=[4,1]<=[4]",  # of another number of devices
        "devices=[3,3]<=[8]",
        "devices=[8,1]<=[2,4]T(0,0)",
        "devices=[8,1]<=[2,4]T(0,2)",
        "devices=[8,1]0,1,2,3,4,5,6,6",
        "devices=[8,1]0,1,2",
        "devices=[8]<=[" + ",".join(["8", *["1"] * 99]) + "]",
        "devices=[8" + ",1" * 99_999,
        "mesh['a'=2,'b'=4],[{'c'},{}]",
        "mesh['a'=2,'b'=4],[{'b'},{'b'}]",
        "mesh['a'=2,'b'=4],[{'a'},{'a'}]",
        "mesh['a'=2,'b'=4],[{'b':(1)2},{'b':(1)2}]",
        "mesh['a'=2,'b'=4],[{'b':(3)2},{}]",
        "mesh['a'=2,'b'=4],[{'b':(0)0},{}]",
        "mesh['a'=0,'b'=4],[{'a'},{}]",
        "mesh['a'=2,'b'=4],[{'a'},{}],unreduced={'b'}",
        "mesh['a'=2,'b'=4],[{'a'},{}],manual={'b'}",
        "mesh[" + ",".join(f"'{k}'=1" for k in range(99)) + ",'b'=8],[{'b'},{}]",
        "mesh['a'=2",
    ],
)
def test_what_does_not_tell_who_has_which_part_tells_nothing(text):
    assert sharding(text, 1, 8) is None


def test_names_and_shardings_survive_the_file_and_the_listing():
    found = program(
        "f32[2,4]{1,0} parameter(0), sharding={mesh['a'=2, 'b'=4], [{'a'}, {}]}, "
        r"""metadata={op_name="params[\'w\"1\']" source_file="m.py"}"""
    )
    assert found.parameters == (ArrayInfo("params['w\"1']", 0),)
    assert found.shardings == (Sharding((2, 1), (0, 0, 0, 0, 1, 1, 1, 1)),)
    assert parse_program(print_program(found)) == found
    assert unpack(compile_text(_NEFF_TEXT).data, "m").parameters[0].name == "x"


_NEFF_TEXT = 'ENTRY m { p = f32[4] parameter(0), metadata={op_name="x"} ROOT n = f32[4] negate(p) }'


def test_nothing_is_kept_where_nothing_is_said():
    assert program("f32[2,4]{1,0} parameter(0)").parameters == ()


def test_the_same_sharding_is_kept_once_and_one_of_another_rank_not_at_all():
    text = """HloModule m, num_partitions=2
ENTRY %m_spmd {
  %p = f32[2] parameter(0), sharding={devices=[2]<=[2]}
  %q = f32[2] parameter(1), sharding={devices=[2]<=[2] metadata={op_name="a"}}
  %r = f32[2] parameter(2), sharding={devices=[2,1]<=[2]}
  %s = f32[2] add(%p, %q)
  ROOT %t = f32[2] add(%s, %r)
}
"""
    found = compile_text(text).program
    assert [one.sharding for one in found.parameters] == [0, 0, None]
    assert found.shardings == (Sharding((2,), (0, 1)),)


def test_each_array_of_a_tuple_has_its_own():
    text = """HloModule m, num_partitions=2
ENTRY %m_spmd {
  %p = (f32[2], f32[4,2]) parameter(0), sharding={{replicated}, {devices=[2,1]<=[2]}}, \
metadata={op_name="x"}
  %a = f32[2] get-tuple-element(%p), index=0
  %b = f32[4,2] get-tuple-element(%p), index=1
  ROOT %t = (f32[2], f32[4,2]) tuple(%a, %b)
}
"""
    found = compile_text(text).program
    assert found.parameters == (ArrayInfo("x[0]", None, (2,)), ArrayInfo("x[1]", 0))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_tiling_agrees_with_the_array_of_devices(seed):
    """By the definition of `devices`: tile (i, j) lies on the devices that the array has there."""
    random = np.random.default_rng(seed)
    dims = random.permutation([2, 3, 4])[: random.integers(1, 4)]
    count = int(np.prod(dims))
    axes = random.permutation(len(dims))
    devices = np.arange(count).reshape(dims).transpose(axes)
    tiles = devices.shape[:-1] if random.integers(2) else devices.shape
    shown = f"devices=[{','.join(map(str, devices.shape))}]<=[{','.join(map(str, dims))}]"
    shown += f"T({','.join(map(str, axes))})"
    shown += " last_tile_dim_replicate" if tiles != devices.shape else ""
    found = sharding(shown, 1, count)
    if np.prod(tiles) < 2:
        assert found is None
        return
    assert found is not None
    for place in np.ndindex(devices.shape):
        part = found.parts[int(devices[place])]
        assert np.unravel_index(part, found.tiles) == place[: len(tiles)]
