"""`--sdk`: what the compiler of a release joined in a prefill, by the rows of a program."""

import pytest

from ncc_compiler.codegen.generate import Neff
from ncc_compiler.driver import compile_text, load_text
from ncc_compiler.options import CompileOptions
from ncc_compiler.releases import JOINED, SPILLED, as_released

RELEASED = CompileOptions(level=2, sdk="2.18")

LAYER = """HloModule layer, replica_count=4
add {{ a = bf16[] parameter(0)
 b = bf16[] parameter(1)
 ROOT c = bf16[] add(a, b) }}
ENTRY e {{
  x = bf16[{n},{w}] parameter(0)
  y = bf16[{w},64] parameter(1)
  z = bf16[64,{w}] parameter(2)
  up = bf16[{n},64] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  a = bf16[{n},64] tanh(up)
  b = bf16[{n},64] multiply(a, up)
  c = bf16[{n},64] negate(b)
  d = bf16[{n},64] sine(c)
  e = bf16[{n},64] add(d, a)
  down = bf16[{n},{w}] dot(e, z), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  sum = bf16[{n},{w}] all-reduce(down), replica_groups={{{{0,1,2,3}}}}, to_apply=add
  ROOT r = bf16[{n},{w}] add(x, sum)
}}
"""


def compiled(rows: int, options: CompileOptions) -> Neff:
    return compile_text(LAYER.format(n=rows, w=4096), options)


def instructions(neff: Neff) -> int:
    return sum(len(table) for table in neff.program.queues.values())


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [(1, {}), (127, {}), (128, JOINED), (3072, JOINED), (3073, SPILLED), (8192, SPILLED)],
)
def test_what_a_release_joined_goes_by_the_rows_of_the_residual_stream(
    rows: int, chosen: dict[str, str]
) -> None:
    # 3,072 rows of 4,096 elements of 2 bytes are 24 MiB
    module = load_text(LAYER.format(n=rows, w=4096))
    assert as_released(RELEASED, module).pass_options == chosen


def test_without_collectives_the_shape_that_most_products_have_is_the_stream() -> None:
    text = LAYER.format(n=3073, w=4096).replace("replica_count=4", "replica_count=1")
    text = text.replace("{{0,1,2,3}}", "{{0}}").replace("add(x, sum)", "add(x, down)")
    lines = [line for line in text.splitlines() if "all-reduce" not in line]
    assert as_released(RELEASED, load_text("\n".join(lines))).pass_options == SPILLED


def test_options_of_passes_that_are_given_hold() -> None:
    given = CompileOptions(level=2, sdk="2.18", pass_options={"fuse.limit_nodes": "7"})
    found = as_released(given, load_text(LAYER.format(n=128, w=4096)))
    assert found.pass_options == {**JOINED, "fuse.limit_nodes": "7"}


@pytest.mark.parametrize(("level", "sdk"), [(0, "2.18"), (2, None)])
def test_nothing_is_chosen_without_a_release_or_at_level_0(level: int, sdk: str | None) -> None:
    options = CompileOptions(level=level, sdk=sdk)
    assert as_released(options, load_text(LAYER.format(n=128, w=4096))) is options


def test_less_is_joined_where_rows_spill() -> None:
    plain = CompileOptions(level=2)
    assert instructions(compiled(1, RELEASED)) == instructions(compiled(1, plain))
    most, some, none = (
        instructions(compiled(*case)) for case in ((128, plain), (128, RELEASED), (4096, RELEASED))
    )
    assert most < some < none


def test_a_release_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\.18"):
        CompileOptions(sdk="1.0")
