"""Plans that are none, deadlock, race or do something else are refused, each by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ncc_runtime.cli import main
from ncc_runtime.errors import PlanError
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.plans import msccl_file
from ncc_runtime.runtime import load
from tests import msccl_files
from tests.msccl_files import File
from tests.programs import collective_program


def refusal(text: str | bytes, tmp_path: Path, op: CollectiveOp = CollectiveOp.ALL_REDUCE) -> str:
    """What is said of a file's text for four ranks, without `plan FILE: `."""
    path = tmp_path / "plan.xml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(PlanError) as caught:
        load(collective_program(op, 4, [16]), plans=[str(path)])
    assert "\n" not in str(caught.value)
    before, text = str(caught.value).split(f"plan {path}: ")
    assert not before
    return text


def edited(edit: Callable[[File], object], make: Callable[[], File] | None = None) -> str:
    file = msccl_files.ring_all_reduce(4) if make is None else make()
    edit(file)
    return file.xml()


def block(file: File, gpu: int, number: int = 0) -> msccl_files.Block:
    return list(file.blocks[gpu].values())[number]


def step(file: File, gpu: int, place: int, number: int = 0) -> msccl_files.Step:
    return block(file, gpu, number).steps[place]


def test_a_swapped_offset_names_chunk_gpu_and_step(tmp_path: Path):
    def swap(file: File) -> None:
        steps = block(file, 2).steps
        steps[4].target, steps[5].target = steps[5].target, steps[4].target

    said = refusal(edited(swap), tmp_path)
    assert said == (
        "line 30, column 7: not all-reduce: chunk 1 of the result of gpu 2 holds chunk 2 of gpus "
        "0, 1, 2, 3, not chunk 1; last written by gpu 2, tb 0, step 4"
    )


def test_a_contribution_that_is_missing_is_named(tmp_path: Path):
    def lose(file: File) -> None:
        step(file, 3, 1).kind = "rcs"

    said = refusal(edited(lose), tmp_path)
    assert said.startswith("line ")
    assert "not all-reduce: chunk 2 of the result of gpu 0 lacks the "
    assert "lacks the contribution of gpu 3; last written by gpu " in said


def test_a_contribution_that_is_joined_twice_is_named(tmp_path: Path):
    def twice(file: File) -> None:
        step(file, 0, 4).kind = "rrcs"
        step(file, 0, 4).source = step(file, 0, 4).target

    said = refusal(edited(twice), tmp_path)
    assert "is wrong: gpu 0, tb 0, step 4 (line 8) joins the contribution of gpu 0 twice" in said


def test_a_dropped_dependency_is_a_race(tmp_path: Path):
    def drop(file: File) -> None:
        step(file, 1, 2, number=0).deps = []

    text = edited(drop, lambda: msccl_files.all_pairs_all_reduce(4))
    said = refusal(text, tmp_path)
    assert "race: i[1] of gpu 1 is read and written in no order" in said
    assert said.endswith("too: a dependency is missing")
    assert "gpu 1, tb 0, step 2 (line " in said


def test_a_wrong_count_is_named_on_both_sides(tmp_path: Path):
    def more(file: File) -> None:
        step(file, 1, 6).count = 2

    said = refusal(edited(more), tmp_path)
    assert "gpu 1, tb 0, step 6" in said


def test_counts_that_differ_on_a_connection_are_named(tmp_path: Path):
    def more(file: File) -> None:
        step(file, 0, 0).count = 2
        file.chunks = 8

    said = refusal(edited(more), tmp_path)
    assert said == (
        "line 16, column 7: gpu 1, tb 0, step 1: receives cnt 1 and gpu 0, tb 0, step 0, "
        "sends cnt 2"
    )


def test_of_several_faults_the_first_in_the_file_is_named(tmp_path: Path):
    def beyond(file: File) -> None:
        step(file, 3, 0).source = ("i", 7)
        step(file, 1, 2).source = step(file, 1, 4).target = ("i", 9)

    said = refusal(edited(beyond), tmp_path)
    assert said == "line 17, column 7: gpu 1, tb 0, step 2: i[9..9], the buffer i has 4 chunks"

    def unlike(file: File) -> None:
        file.chunks = 8
        step(file, 2, 0).count = step(file, 1, 3).count = 2

    said = refusal(edited(unlike), tmp_path)
    assert "gpu 1, tb 0, step 3: receives cnt 2 and gpu 0, tb 0, step 2, sends cnt 1" in said


def test_two_senders_on_one_connection_are_named(tmp_path: Path):
    def twice(file: File) -> None:
        file.block(0, 1, -1).add("s", ("i", 0), ("i", 0))

    said = refusal(edited(twice), tmp_path)
    assert said.endswith(
        "gpu 0, tb 1: tb 0 and tb 1 send to gpu 1 on channel 0; a connection has one tb"
    )


def test_a_send_that_nobody_receives_is_a_deadlock(tmp_path: Path):
    def more(file: File) -> None:
        block(file, 0).add("s", ("i", 0), ("i", 0))

    said = refusal(edited(more), tmp_path)
    assert (
        "gpu 0, tb 0, step 7: deadlock: its thread block sends 7 times to gpu 1 on channel 0"
        in said
    )


def test_steps_that_wait_in_a_circle_are_a_deadlock(tmp_path: Path):
    def turned(file: File) -> None:
        for gpu in range(4):
            first, second = block(file, gpu).steps[:2]
            second.kind, first.kind = "s", "rrs"
            block(file, gpu).steps[:2] = [first, second]

    said = refusal(edited(turned), tmp_path)
    assert said.startswith("line ")
    assert "deadlock: gpu 0, tb 0, step 0 receives from gpu 3" in said


def test_a_step_that_waits_for_itself_is_a_deadlock(tmp_path: Path):
    def itself(file: File) -> None:
        step(file, 2, 3).deps = [step(file, 2, 3)]

    assert "deadlock: gpu 2, tb 0, step 3 depends on gpu 2, tb 0, step 3" in refusal(
        edited(itself), tmp_path
    )


def test_a_join_whose_source_is_neither_its_own_nor_the_senders_is_wrong(tmp_path: Path):
    def other(file: File) -> None:
        step(file, 1, 1).source = ("i", 1)

    said = refusal(edited(other), tmp_path)
    assert "gpu 1, tb 0, step 1 (line 16) joins chunk 0 to chunk 1" in said


def test_gpus_without_steps_leave_the_sum_incomplete(tmp_path: Path):
    said = refusal(File("none", "allreduce", 4, 4, in_place=True).xml(), tmp_path)
    assert said.endswith("gpu 0 lacks the contribution of gpus 1, 2, 3; no step writes there")


def test_buffers_that_are_one_are_to_be_said_so(tmp_path: Path):
    said = refusal(msccl_files.ring_all_reduce(4).xml().replace('inplace="1"', ""), tmp_path)
    assert said.endswith('no step writes to o: say inplace="1" if i and o are one buffer')


def test_a_dependency_on_a_step_that_tells_nobody_is_a_deadlock(tmp_path: Path):
    text = msccl_files.all_pairs_all_reduce(4).xml().replace('hasdep="1"', 'hasdep="0"')
    assert "tells nobody: hasdep is 0 there and behind it" in refusal(text, tmp_path)


def test_a_dependency_on_an_own_earlier_step_that_tells_nobody_is_a_deadlock(tmp_path: Path):
    text = msccl_files.ring_all_reduce(4).xml()
    own = text.replace(' s="2"', ' s="2" x=""', 1)
    line = next(line for line in own.splitlines() if 'x=""' in line)
    waits = line.replace('x=""', "").replace('depid="-1" deps="-1"', 'depid="0" deps="0"')
    said = refusal(own.replace(line, waits), tmp_path)
    assert "line 6, column 7: gpu 0, tb 0, step 2: deadlock: depends on tb 0, step 0, which" in said
    assert said.endswith("steps of a tb run in order: leave the dependency out")
    # the next step that tells others tells the own thread block, too
    first, second = [one for one in own.splitlines() if 'type="' in one][:2]
    for told in (first, second):
        tells = own.replace(told, told.replace('hasdep="0"', 'hasdep="1"'), 1)
        path = tmp_path / "plan.xml"
        path.write_text(tells.replace(line, waits))
        load(collective_program(CollectiveOp.ALL_REDUCE, 4, [16]), plans=[str(path)])


def test_a_nop_tells_nobody_whatever_its_hasdep(tmp_path: Path):
    """In MSCCL's executors a nop is a wait of the step behind it; steps alone set flags."""
    file = msccl_files.ring_all_reduce(4)
    alone = file.block(0)
    alone.steps = [msccl_files.Step("nop", ("i", 0), ("i", 0))]
    alone.steps[0].tells = True
    step(file, 0, 3).deps = [alone.steps[0]]
    said = refusal(file.xml(), tmp_path)
    assert "gpu 0, tb 0, step 3: deadlock: depends on tb 1, step 0, which tells nobody: " in said
    assert "(that of a nop does not count)" in said


def test_an_execution_plan_of_another_runtime_is_named(tmp_path: Path):
    text = """{"name": "allreduce_2", "collective": "allreduce", "protocol": "Simple",
      "inplace": true, "gpus": [{"id": 0, "inputChunks": 1, "outputChunks": 1,
      "scratchChunks": 0, "threadblocks": [{"id": 0, "ops": [{"name": "nop"}], "channels": []}],
      "channels": []}], "num_threads_per_block": 1024}"""
    said = refusal(text, tmp_path)
    assert said.startswith("an execution plan of MSCCL++, whose operations")
    assert "write the algorithm as MSCCL XML" in said
    assert "missing required field" in refusal('{"collectives": []}', tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'type="rrs"',
            'type="rsr"',
            "line 5, column 7: gpu 0, tb 0, step 1: no type of step 'rsr'; there are s, r, rcs",
        ),
        (
            'srcbuf="i"',
            'srcbuf="x"',
            "line 4, column 7: gpu 0, tb 0, step 0: srcbuf is 'x', must be i, o or s",
        ),
        ('cnt="1"', 'cnt="0"', "line 4, column 7: gpu 0, tb 0, step 0: cnt is 0, must be 1 to "),
        (
            'cnt="1"',
            'cnt="1e3"',
            "line 4, column 7: gpu 0, tb 0, step 0: cnt is '1e3', which is no whole number",
        ),
        ('send="1"', 'send="9"', "line 3, column 5: gpu 0, tb 0: send is 9, must be -1 to 3"),
        ('send="1"', 'send="0"', "line 3, column 5: gpu 0, tb 0: send is 0, the gpu itself"),
        (
            'send="1"',
            'send="-1"',
            "line 4, column 7: gpu 0, tb 0, step 0: a step s in a tb whose send is -1",
        ),
        (' s="1"', ' s="7"', "line 5, column 7: gpu 0, tb 0, step 7: s is 7, must be 1"),
        ('gpu id="2"', 'gpu id="0"', "line 24, column 3: gpu 0: the second gpu of this id"),
        ('chan="0"', 'chan="5"', "line 3, column 5: gpu 0, tb 0: chan is 5, must be -1 to 0"),
        (
            'depid="-1"',
            'depid="3"',
            "line 4, column 7: gpu 0, tb 0, step 0: deps is -1, must be 0 to ",
        ),
        (
            'srcoff="0"',
            'srcoff="4"',
            "line 4, column 7: gpu 0, tb 0, step 0: i[4..4], the buffer i",
        ),
        ("<step", "<stop", "line 4, column 7: gpu 0, tb 0: <stop> in <tb>, where <step> belongs"),
        (' s="2"', "", "line 6, column 7: gpu 0, tb 0, step at place 2: <step> has no s"),
        ('tb id="0"', "tb", "line 3, column 5: gpu 0, tb at place 0: <tb> has no id"),
        ('gpu id="0"', "gpu", "line 2, column 3: gpu at place 0: <gpu> has no id"),
        ("<tb", '<copy o_off="0"/><tb', "line 3, column 5: gpu 0: <copy> has no i_off"),
        (
            "<tb",
            '<copy i_off="0" o_off="9"/><tb',
            "line 3, column 5: gpu 0, copy 0: o[9..9], the buffer o has 4 chunks",
        ),
        ("<algo", "<algorithm", "not XML: mismatched tag"),
        ('nchunksperloop="4"', "", "line 1, column 1: <algo> has no nchunksperloop"),
    ],
)
def test_what_a_file_cannot_mean_is_named_with_line_and_column(
    old: str, new: str, said: str, tmp_path: Path
):
    text = msccl_files.ring_all_reduce(4).xml().replace(old, new, 1)
    assert said in refusal(text, tmp_path)


def test_hostile_xml_is_refused(tmp_path: Path):
    bomb = '<!DOCTYPE algo [<!ENTITY a "aaaa">]><algo name="&a;"/>'
    assert refusal(bomb, tmp_path).startswith("line 1, column 16: a document type or an entity")
    outside = '<?xml version="1.0"?>\n<!DOCTYPE algo SYSTEM "file:///etc/passwd"><algo/>'
    assert refusal(outside, tmp_path).startswith("line 2, column 43: a document type")
    deep = "<a>" * 50 + "</a>" * 50
    assert "elements more than 8 deep" in refusal(deep, tmp_path)
    assert "not XML" in refusal(b"\xff\xfe\x00<", tmp_path)
    assert "not XML" in refusal('<?xml version="1.0" encoding="no-such"?><algo/>', tmp_path)
    assert "not XML" in refusal("", tmp_path)
    assert "not XML" in refusal(b"<algo name='\x00'/>", tmp_path)


def test_too_many_elements_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(msccl_file, "MOST_ELEMENTS", 10)
    assert "more than 10 elements" in refusal(msccl_files.ring_all_reduce(4).xml(), tmp_path)


def test_a_few_bytes_do_not_take_hours(tmp_path: Path):
    text = msccl_files.ring_all_reduce(4).xml()
    large = text.replace('nchunksperloop="4"', 'nchunksperloop="1048576"')
    assert "its buffers have 8388608 chunks in all, at most 2097152" in refusal(large, tmp_path)
    many = text.replace('nchunksperloop="4"', 'nchunksperloop="262144"')
    many = many.replace('cnt="1"', 'cnt="262140"')
    assert "its steps move 7339920 chunks in all, at most 2097152" in refusal(many, tmp_path)


def test_a_plan_for_other_ranks_or_operators_says_why(tmp_path: Path):
    said = refusal(msccl_files.ring_all_reduce(8).xml(), tmp_path)
    expected = "fits no collective (p0 all-reduce.0: it is for 8 ranks, a group has 4)"
    assert said == expected
    said = refusal(msccl_files.ring_all_gather(4).xml(), tmp_path)
    assert said == "fits no collective (p0 all-reduce.0: it is for all-gather)"
    said = refusal(msccl_files.shifted_copy(4).xml(), tmp_path)
    assert "it is for 'custom': say what it fills, as all-reduce=FILE" in said
    said = refusal(msccl_files.ring_all_reduce(4).xml().replace('coll="allreduce"', ""), tmp_path)
    assert "it has no coll: say what it fills, as all-reduce=FILE" in said


def test_two_plans_for_one_collective_are_refused_unless_one_is_for_it_alone(tmp_path: Path):
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    one, two = tmp_path / "one.xml", tmp_path / "two.xml"
    one.write_text(msccl_files.ring_all_reduce(4).xml())
    two.write_text(msccl_files.all_pairs_all_reduce(4).xml())
    with pytest.raises(PlanError, match="both fit; say p0=FILE which is for it"):
        load(program, plans=[str(one), str(two)])
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], repeat=2)
    model = load(program, plans=[str(one), f"p1={two}"])
    assert [one.name for one in model.executable.lowered] == ["msccl:ring", "msccl:allpairs"]


def test_the_command_refuses_with_one_line_and_exit_code_1(tmp_path: Path, capsys):
    path, neff = tmp_path / "bad.xml", tmp_path / "model.neff"
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    container.save(container.pack(program), neff)
    path.write_text("<algo")
    for command in ("run", "list", "explain"):
        assert main([command, str(neff), "--plan", str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"error: plan {path}: line 1, column 1: not XML: unclosed token\n"
    assert main(["run", str(neff), "--plan", f"{tmp_path}/none.xml"]) == 1
    assert "none.xml: no such file or directory" in capsys.readouterr().err


def test_the_command_warns_once_of_what_jams_on_a_gpu(tmp_path: Path, capsys):
    path, neff = tmp_path / "both.xml", tmp_path / "model.neff"
    container.save(container.pack(collective_program(CollectiveOp.ALL_TO_ALL, 2, [6])), neff)
    file = File("both", "alltoall", 2, 6)
    for gpu in range(2):
        its = file.block(gpu, 1 - gpu, 1 - gpu)
        file.copies[gpu] = [(3 * gpu + k, 3 * gpu + k) for k in range(3)]
        for chunk in range(3):
            its.add("s", ("i", 3 - 3 * gpu + chunk), ("o", 3 * gpu + chunk))
        for chunk in range(3):
            its.add("r", ("i", 3 * gpu + chunk), ("o", 3 - 3 * gpu + chunk))
    path.write_text(file.xml())
    for command in ("run", "explain", "verify"):
        assert main([command, str(neff), "--plan", str(path)]) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "plan " in line]
        assert len(said) == 1
        assert said[0].startswith(f"warning: plan {path}: line ")
        assert "jams on a GPU, where a connection of Simple holds 2 chunks: gpu 0, tb 0," in said[0]


def test_large_words_are_refused_and_not_echoed(tmp_path: Path):
    text = msccl_files.ring_all_reduce(4).xml()
    for old, new, said in (
        ('cnt="1"', f'cnt="{"9" * 10**6}"', "cnt is '99999999999999999999', which is no whole"),
        ('name="ring"', f'name="{"x" * 10**6}"', "name has 1000000 letters, at most 200"),
        ('coll="allreduce"', f'coll="{"x" * 10**6}"', "coll has 1000000 letters, at most 200"),
        ('type="s"', f'type="{"x" * 10**6}"', "no type of step 'xxxxxxxxxxxxxxxxxxxx'; there"),
        ("<tb", f"<{'x' * 10**6}/><tb", "<xxxxxxxxxxxxxxxxxxxx> in <gpu>, where <tb> or <copy>"),
    ):
        found = refusal(text.replace(old, new, 1), tmp_path)
        assert said in found
        assert len(found) < 200
