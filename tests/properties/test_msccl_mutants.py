"""Random edits of MSCCL files: each is refused by name, or still gives numpy's values."""

import random
from collections.abc import Callable
from typing import TypeVar
from xml.etree import ElementTree

import numpy as np
import pytest

from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.plans import msccl_file
from ncc_runtime.plans.msccl_file import StepKind
from ncc_runtime.runtime import load
from tests.msccl_files import ALL, direct_all_to_all, ring_all_gather
from tests.programs import collective_program
from tests.runtime.test_msccl_files import given, wanted, whole, with_copies

FILES = [
    (CollectiveOp(op), make) for op, kinds in ALL.items() for make in kinds if make().gpus <= 8
]
FILES += [
    (CollectiveOp.ALL_GATHER, lambda: with_copies(ring_all_gather(4, 2))),
    (CollectiveOp.ALL_TO_ALL, lambda: with_copies(direct_all_to_all(4, 2))),
]


def edit(text: str, draw: random.Random) -> str:
    """One attribute of one step or thread block is something else."""
    root = ElementTree.fromstring(text)
    step, most = draw.choice(list(root.iter("step"))), int(root.get("nchunksperloop", "1"))
    block = draw.choice(list(root.iter("tb")))
    match draw.randrange(12):
        case 0:
            step.set("srcoff", str(draw.randrange(most)))
        case 1:
            step.set("dstoff", str(draw.randrange(most)))
        case 2:
            step.set("cnt", str(draw.randrange(1, 4)))
        case 3:
            for one in root.iter("step"):
                if one.get("depid") != "-1" and draw.random() < 0.3:
                    one.set("depid", "-1")
        case 4:
            step.set("type", draw.choice([kind.value for kind in StepKind]))
        case 5:
            step.set("depid", str(draw.randrange(3)))
            step.set("deps", str(draw.randrange(3)))
            for one in root.iter("step"):
                one.set("hasdep", "1")
        case 6:
            block.set(draw.choice(["send", "recv"]), str(draw.randrange(int(root.get("ngpus", 1)))))
        case 7:
            step.set(draw.choice(["srcbuf", "dstbuf"]), draw.choice("ios"))
        case 8:
            for one in root.iter("step"):
                one.set("hasdep", draw.choice("01"))
        case 9:
            root.set("proto", draw.choice(["Simple", "LL", "LL128"]))
            root.set(draw.choice(["inplace", "outofplace"]), draw.choice("01"))
        case 10:
            offsets = {"i_off": str(draw.randrange(most)), "o_off": str(draw.randrange(most))}
            draw.choice(list(root.iter("gpu"))).insert(0, ElementTree.Element("copy", offsets))
        case 11:
            for gpu in root.iter("gpu"):
                for copy in gpu.findall("copy")[:1]:
                    copy.set("o_off", str(draw.randrange(most)))
    return ElementTree.tostring(root, encoding="unicode")


T = TypeVar("T")


def tried(call: Callable[[], T]) -> tuple[T | None, str]:
    """What it gives, or why it is refused."""
    try:
        return call(), ""
    except PlanError as reason:
        return None, str(reason)


@pytest.mark.parametrize("seed", range(60))
def test_an_edited_file_is_refused_or_right(seed: int, tmp_path):
    draw = random.Random(seed)
    op, make = draw.choice(FILES)
    file, path = make(), tmp_path / "plan.xml"
    path.write_text(edit(file.xml(), draw))
    elements = whole(op, file, draw.choice([8, 35, 64]))
    program = collective_program(op, file.gpus, [elements], dtype=DType.S32)
    values = given((file.gpus, elements))
    model, said = tried(lambda: load(program, plans=[str(path)]))
    if model is None:
        assert "line " in said or "fits no collective" in said
        return
    run = model.run([values], clock=False, shuffle_seed=seed)
    np.testing.assert_array_equal(run.outputs[0], wanted(op, values))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_are_refused_or_read(seed: int):
    draw = random.Random(seed)
    _, make = draw.choice(FILES)
    data = bytearray(make().xml().encode())
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(data))
        if draw.random() < 0.5:
            data[at] = draw.randrange(256)
        else:
            del data[at : at + draw.randrange(40)]
    algo, said = tried(lambda: msccl_file.read(bytes(data)))
    assert said.startswith("line ") if algo is None else algo.gpus
