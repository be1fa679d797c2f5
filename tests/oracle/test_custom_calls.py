"""XLA's parser reads what is printed of the collectives that HLO lacks."""

import pytest

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from tests.counted_programs import SLOTTED, Shape, text_of

LINES = [
    'f32[4] custom-call(x), custom_call_target="ncc.reduce", '
    'backend_config={"replica_groups":[[0,1],[2,3]],"root":1,"reduction":"add"}',
    'f32[16] custom-call(x), custom_call_target="ncc.gather", '
    'backend_config={"replica_groups":"[1,4]<=[4]","root":0,"dimensions":[0]}',
    'f32[4] custom-call(x), custom_call_target="ncc.avg_all_reduce"',
    'f32[4] custom-call(x), custom_call_target="ncc.barrier", custom_call_has_side_effect=true',
    "f32[4] collective-broadcast(x), replica_groups={{1,2}}",
]


def assert_read(text: str) -> None:
    from jaxlib import _hlo

    module = load_module(Source("a.ir", text))
    theirs = _hlo.hlo_module_from_text(print_module(module)).to_string()
    again = load_module(Source("b.ir", theirs), 4)
    ours, read = (one.entry_computation.nodes[-1] for one in (module, again))
    assert (read.op, read.type) == (ours.op, ours.type)
    assert {key: read.attributes[key] for key in ours.attributes} == dict(ours.attributes)


@pytest.mark.parametrize("line", LINES)
def test_xla_reads_what_is_printed_and_prints_what_we_read(line: str) -> None:
    assert_read(f"HloModule m, replica_count=4\nx = f32[4] parameter(0)\nROOT r = {line}\n")


@pytest.mark.parametrize("op", ["ragged-all-to-all", *SLOTTED])
def test_xla_reads_collectives_of_variable_size(op: str) -> None:
    assert_read(text_of(op, Shape(groups=((2, 0), (3, 1)))))
