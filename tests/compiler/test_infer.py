"""Result types, one or two texts an op; what is wrong with operands is in test_verify.py."""

import re

import pytest

from ncc_compiler.ir.infer import RULES
from ncc_compiler.ir.ops import OPS
from tests.compiler.reading import SUM, complaints

PARAMETERS = """x = f32[2,3] parameter(0)
y = f32[3,4] parameter(1)
p = pred[2,3] parameter(2)
s = f32[] parameter(3)
c = c64[2] parameter(4)
h = bf16[2,3] parameter(5)
n = s8[5,2,3] parameter(6)
q = pred[] parameter(7)
u = u16[2,3] parameter(8)
"""

RIGHT = """
f32[] constant(1)
(f32[2,3], f32[]) tuple(x, s)
() tuple()
f32[2,3] exponential(x)
s8[2,3] convert(x)
f32[2,3] add(x, x)
pred[2,3] add(p, p)
pred[2,3] and(p, p)
pred[2,3] compare(x, x), direction=LT
pred[2,3] compare(x, x), direction=LT, type=TOTALORDER
pred[2] compare(c, c), direction=NE
f32[2,3] select(p, x, x)
f32[2,3] select(q, x, x)
f32[2] abs(c)
f32[2] imag(c)
c64[2,3] complex(x, x)
pred[2,3] is-finite(x)
f32[2,3] clamp(s, x, x)
f32[6] bitcast(x)
f32[6,1]{0,1} bitcast(x)
s16[2,3,2] bitcast-convert(x)
pred[2,3,4] bitcast-convert(x)
u1[2,3,32] bitcast-convert(x)
f4e2m1fn[2,3,8] bitcast-convert(x)
bf16[2,3] bitcast-convert(u)
f32[2,3] reduce-precision(x), exponent_bits=5, mantissa_bits=0
s4[2,3] stochastic-convert(h, u)
f32[2,3] map(x, x), dimensions={0,1}, to_apply=sum
s32[4,2] iota(), iota_dimension=1
u32[] partition-id()
u32[] replica-id()
f32[4,3,2] broadcast(x), dimensions={2,1}
f32[7] broadcast(s), dimensions={}
f32[3,2] reshape(x)
f32[6,1] reshape(x)
f32[3,2] transpose(x), dimensions={1,0}
s8[3,5,2] transpose(n), dimensions={2,0,1}
f32[1,2] slice(x), slice={[1:2], [0:3:2]}
f32[0,3] slice(x), slice={[1:1], [0:3]}
f32[2,9] concatenate(x, x, x), dimensions={1}
f32[2,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
f32[2,3,3,4] dot(x, y)
bf16[2,2] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={1}
f32[2,2] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={1}
s32[5,2,3,2,3] dot(n, n), lhs_batch_dims={0}, rhs_batch_dims={0}
s32[3,3] dot(n, n), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}
f32[2] reduce(x, s), dimensions={1}, to_apply=sum
f32[] reduce(x, s), dimensions={0,1}, to_apply=sum
f32[2,3] all-reduce(x), to_apply=sum
(f32[2,3], f32[3,4]) all-reduce(x, y), to_apply=sum
f32[2,12] all-gather(x), dimensions={1}
(f32[8,3], f32[12,4]) all-gather(x, y), dimensions={0}
f32[3,1] reduce-scatter(y), dimensions={1}, to_apply=sum
f32[3,4] all-to-all(y), dimensions={1}
(f32[], f32[], f32[], f32[]) all-to-all(s, s, s, s)
f32[2,3] collective-permute(x), source_target_pairs={{0,1},{1,2}}
(f32[2,3], f32[]) collective-permute(x, s), source_target_pairs={}
f32[] call(s, s), to_apply=sum
"""


@pytest.mark.parametrize("line", RIGHT.strip().splitlines())
def test_declared_type_follows_from_the_operands(line: str) -> None:
    assert complaints(f"{SUM}{PARAMETERS}ROOT r = {line}\n", ranks=4) == []


# the result of these is what the text says
FREE = re.compile(r"constant|convert|broadcast|iota|dot|reshape|bitcast|\(\)")


@pytest.mark.parametrize(
    "line", [one for one in RIGHT.strip().splitlines() if not FREE.search(one)]
)
def test_another_declared_type_is_refused_at_the_type(line: str) -> None:
    kind, call = re.fullmatch(r"(.*\)|\S+) (\S+\(.*)", line).groups()
    assert complaints(f"{SUM}{PARAMETERS}ROOT r = (f64[9], {kind}) {call}\n", ranks=4) == [
        "15:10 op-C5"
    ]


def test_every_op_has_a_rule() -> None:
    assert RULES.keys() == OPS.keys()
