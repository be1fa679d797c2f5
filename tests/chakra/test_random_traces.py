"""Random traces are compiled, proved and timed; damaged ones are read or refused, quickly."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.frontends.chakra.programs import read_programs
from tests.chakra import draws, messages
from tests.chakra.messages import COLL, RECV, SEND


def exchanges(nodes: list[messages.Node]) -> Counter[tuple[object, ...]]:
    """What a rank exchanges with others: what it is, how large, with whom."""
    found = Counter[tuple[object, ...]]()
    for node in nodes:
        facts = node.attributes
        if node.kind == COLL:
            found[facts["comm_type"], facts["comm_size"]] += 1
        elif node.kind in (SEND, RECV):
            peer = facts["comm_dst" if node.kind == SEND else "comm_src"]
            found[node.kind, facts["comm_size"], peer] += 1
    return found


@given(draws.traces())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_can_be_performed_is_and_comes_back_as_the_same_exchanges(
    drawn: draws.DrawnTrace,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = messages.write(folder / "in", drawn.ranks, groups=drawn.groups)
        programs = ncc_compiler.compile_trace(path)
        assert sorted(rank for _, ranks in programs for rank in ranks) == [*range(len(drawn.ranks))]
        run = ncc_runtime.load(programs, "trn2").run(values=False)  # proved: no deadlock, no race
        run.write_chakra(folder / "out")
        for given_nodes, nodes in zip(drawn.ranks, messages.read_all(folder / "out"), strict=True):
            members = [
                drawn.groups.get(n.attributes.get("pg_name", ""), [0, 0]) for n in given_nodes
            ]
            kept = [n for n, group in zip(given_nodes, members, strict=True) if len(group) > 1]
            # sizes are whole elements: of an odd number of bytes they are bytes
            assert exchanges(nodes) == exchanges(kept)
            work = sum(node.attributes.get("num_ops", 0) for node in kept)
            again = sum(
                node.attributes["num_ops"] - node.attributes.get("ncc_elements", 0)
                for node in nodes
                if "num_ops" in node.attributes
            )
            assert again == work


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_trace_is_read_or_refused_with_one_clear_message(data: st.DataObject) -> None:
    drawn = data.draw(draws.traces())
    files = data.draw(draws.damaged([messages.file_of(nodes) for nodes in drawn.ranks]))
    with tempfile.TemporaryDirectory() as name:
        messages.write(Path(name), drawn.ranks, groups=drawn.groups)
        for rank, content in enumerate(files):
            (Path(name) / f"trace.{rank}.et").write_bytes(content)
        try:
            programs = read_programs(name)
        except CompileError as error:
            (complaint,) = error.diagnostics
            assert complaint.code.startswith("chakra-C")
            assert complaint.help
        else:
            for program in programs:  # what is read is a program
                ncc_compiler.compile_text(program.model.text)
