"""Fusions of a program: rules, the listing's parser, several programs joined, JSON."""

import json
from pathlib import Path

import attrs
import ml_dtypes
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.lowering.listing import list_executable, listed_queues
from ncc_runtime.neff.check import check
from ncc_runtime.neff.listing import as_json, parse_program, print_program
from ncc_runtime.neff.program import Program
from ncc_runtime.report.row_texts import row_texts
from tests.wrong_listings import assert_breach, assert_refused, changed

LISTING = Path(__file__).parents[1] / "data" / "neff" / "fused.listing"

# rule, what the listing says, what it says instead, the complaint
BREACHES = [
    ("neff-F1", "v2, v4  ", "v2, v5  ", "fusion f0, row 3: reads v5"),
    ("neff-F1", "gives v12, v18, v19", "gives", "fusion f0: gives nothing"),
    ("neff-F1", "gives v12", "gives v1", "fusion f0: gives v1, which no row computes"),
    ("neff-F1", "gives v12", "gives v20", "fusion f0: gives v20, which no row computes"),
    ("neff-F1", "v7        add", "v6        add", "row 5: computes v6, next is v7"),
    ("neff-F1", "v16, v17  reduce", "v17, v16  reduce", "computes v17, v16, next is v16"),
    ("neff-F1", "f32[4], s32[4] ", "f32[4] ", ": 19 values, parameters and rows make 20"),
    ("neff-F1", "@11 ", "@99 ", "fusion f0, row 10: origin 99, there are 18"),
    ("neff-F2", "divide  ", "dovide  ", "row 10: dovide: is no operation on arrays"),
    ("neff-F2", "divide  ", "fusion  ", "row 10: fusion: is no operation on arrays"),
    ("neff-F2", "divide  ", "wait    ", "row 10: wait: is no operation on arrays"),
    ("neff-F2", "divide  ", "xor     ", "row 10: xor: not defined on f32"),
    ("neff-F2", "divide  ", "negate  ", "row 10: negate: 2 operands, must be 1"),
    ("neff-F2", "region=1", "region=2", "row 14: reduce: region 2, there are 2"),
    ("neff-F2", "dimensions=[1] region=1", "region=1", "attribute dimensions is missing"),
    ("neff-F2", '"0.125"', '"1/8"', "row 1: constant: '1/8' is no f32[]"),
    ("neff-F2", 'f32[]              "0.0"', 'f32[2] "0.0"', "constant: '0.0' is no f32[2]"),
    ("neff-F2", "v3                  @3", 'v3 "1" @3', "row 2: broadcast: has the value '1'"),
    ("neff-F2", "f32[4,6]           v8, v11", "f32[6,4] v8, v11", "result is f32[6,4], operands"),
    ("neff-T3", "= t0, t1 #0", "= t0 #0", "operands are bf16[4,6], those of fusion f0 bf16"),
    ("neff-T3", "= t0, t1 #0", "= t1, t0 #0", "operands are f32[6], bf16[4,6], those of fusion f0"),
    ("neff-T3", "t2, t3, t4 =", "t2, t3 =", "results are f32[4,6], s32[2,2], those of fusion f0"),
    ("neff-T3", "#0  fusion=0", "#0  fusion=1", "pc 0: fusion: fusion 1, there are 1"),
    ("neff-T3", "#0  fusion=0", "#0  fusion=-1", "pc 0: fusion: fusion -1, there are 1"),
    ("neff-T2", "#0  fusion=0", "#0  dimension=0", "fusion: attribute fusion is missing"),
]  # fmt: skip


@pytest.fixture
def program() -> Program:
    return parse_program(LISTING.read_text())


def test_the_program_that_is_broken_below_is_whole(program: Program) -> None:
    assert check(program) == ()
    assert print_program(program) == LISTING.read_text()


@pytest.mark.parametrize(("identifier", "old", "new", "complaint"), BREACHES)
def test_a_breach_is_reported_under_its_rule(
    identifier: str, old: str, new: str, complaint: str
) -> None:
    assert_breach(changed(LISTING.read_text(), old, new), identifier, complaint)


def test_a_fusion_has_no_more_parameters_than_values(program: Program) -> None:
    (fusion,) = program.fusions
    broken = attrs.evolve(fusion, parameters=len(fusion.values) + 1)
    found = check(attrs.evolve(program, fusions=(broken,)))
    assert "neff-F1 fusion f0: 20 values, parameters and rows make 39" in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("f0          fused", "f1 fused", "line 38: 'f0' expected, found 'f1'"),
        ("gives v12", "give v12", "line 38: 'gives' expected, found 'give'"),
        ("bf16[4,6], f32[6]", "bf17[4,6], f32[6]", "line 38: 'bf17' is not a valid DType"),
        ("v2, v4              @4 ", "v2, v4 @4 what", "line 42: attribute=value expected, found"),
        ("  f0          fused", "  v0 fused", "line 38: 'f0' expected, found 'v0'"),
    ],
)
def test_a_wrong_listing_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert_refused(changed(LISTING.read_text(), old, new), message)


def test_a_rank_lists_the_rows_of_a_fusion_below_its_instruction(program: Program) -> None:
    model = ncc_runtime.load(program)
    lines = list_executable(model.executable, 0, "GpSimd").split("\n")[-18:]
    # operands and results of the instruction by their tensors, all else by value
    assert [" ".join(line.split(";")[0].split()) for line in lines] == [
        "0 fusion t2, t3, t4 = t0, t1 #0 @0 elements 216 read 72 written 160",
        "convert v2 = t0 @1",
        'constant v3 = "0.125" @2',
        "broadcast v4 = v3 @3",
        "multiply v5 = v2, v4 @4",
        "broadcast v6 = t1 @5",
        "add v7 = v5, v6 @6",
        "exponential v8 = v7 @7",
        'constant v9 = "0.0" @8',
        "reduce v10 = v8, v9 @9",
        "broadcast v11 = v10 @10",
        "divide t2 = v8, v11 @11",
        "iota v13 = @12",
        'constant v14 = "-inf" @13',
        'constant v15 = "0" @14',
        "reduce v16, v17 = t2, v13, v14, v15 @15",
        "reshape t3 = v17 @16",
        "copy t4 = t0 @17",
    ]
    (queue,) = listed_queues(model.executable, [0], "GpSimd")
    (row,) = queue.as_json()["rows"]
    assert row["op"] == "fusion"
    assert row["attributes"] == {"fusion": 0}
    assert row["fused"][10] == {
        "op": "divide",
        "results": [12],
        "types": ["f32[4,6]"],
        "operands": [8, 11],
        "attributes": {},
        "constant": None,
        "node": "p",
        "source": "model.py:9",
    }
    assert row["fused"][1]["constant"] == "0.125"


def test_json_has_the_fusions_of_the_program(program: Program) -> None:
    (fusion,) = json.loads(json.dumps(as_json(program)))["program"]["fusions"]
    assert (fusion["name"], fusion["parameters"]) == ("fused_softmax", 2)
    assert fusion["results"] == [12, 18, 19]
    assert fusion["values"][0] == {"dtype": "bf16", "shape": [4, 6]}
    assert fusion["body"][4]["operands"] == [1]


def test_fusions_of_several_programs_keep_their_own_regions_and_origins(program: Program) -> None:
    """Both are shifted by what stands before them when stages are joined."""
    ranks = attrs.evolve(program, num_partitions=2)
    first = attrs.evolve(ranks, name="first")
    model = ncc_runtime.load([(first, [1]), (ranks, [0])])
    joint = model.executable.program
    one, two = joint.fusions
    assert [row.attributes.get("region") for row in two.body if "region" in row.attributes] == [
        2,
        3,
    ]
    lines = [[joint.origins[row.origin].node for row in each.body] for each in (one, two)]
    assert lines[0] == lines[1] == [program.origins[row.origin].node for row in one.body]
    x = np.linspace(-3, 3, 48).reshape(2, 4, 6).astype(ml_dtypes.bfloat16)
    alone = ncc_runtime.load(program).run([x[:1]]).outputs
    together = model.run([x[1:], x[:1]], checked=True, shuffle_seed=2).outputs
    assert [array.tobytes() for array in together[3:]] == [array.tobytes() for array in alone]


def test_reports_say_that_an_instruction_comes_from_several_lines(program: Program) -> None:
    executable = ncc_runtime.load(program).executable
    places = [row_texts(executable, number).place for number in range(len(executable.queues))]
    assert [place for queue in places for place in queue] == ["model.py:7 and 2 more"]
