"""MLCommons' own tools, of the package mlc-chakra: they read what we write, we what they write.

`make test-chakra` installs the package. Its tools run as commands of their own, since its generated
code warns of versions of protobuf.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_runtime.neff.shared import chakra
from tests.chakra import messages

ROOT = Path(__file__).parents[3]
TOOLS = "chakra.src"


def tool(name: str, *words: str, cwd: Path) -> str:
    """Run a tool of the package; its standard output."""
    command = [sys.executable, "-W", "ignore", "-m", f"{TOOLS}.{name}.{name}", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def objects(text: str) -> list[Any]:
    """JSON objects that stand one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A training step of eight ranks, as we write it."""
    neff = ncc_compiler.compile_file(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    ncc_runtime.load(neff, "trn2").run(values=False).write_chakra(tmp_path / "traces")
    return tmp_path / "traces"


def test_the_jsonizer_reads_every_node_that_we_write(traces: Path) -> None:
    kinds = ["INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE"]
    kinds += ["COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"]
    for rank, nodes in enumerate(messages.read_all(traces)):
        words = ("--input_filename", f"trace.{rank}.et", "--output_filename", "out.json")
        tool("jsonizer", *words, cwd=traces)
        head, *found = objects((traces / "out.json").read_text())
        assert head["version"] == chakra.VERSION
        assert len(found) == len(nodes)
        for theirs, ours in zip(found, nodes, strict=True):
            assert (int(theirs["id"]), theirs["name"]) == (ours.id, ours.name)
            assert theirs["type"] == kinds[ours.kind]
            assert tuple(map(int, theirs.get("dataDeps", ()))) == ours.data
            assert tuple(map(int, theirs.get("ctrlDeps", ()))) == ours.control
            assert int(theirs.get("durationMicros", 0)) == ours.us
            values = {
                row["name"]: next(value for key, value in row.items() if key != "name")
                for row in theirs["attr"]
            }
            assert values.keys() == ours.attributes.keys()
            for name, value in ours.attributes.items():
                assert type(value)(values[name]) == value, name


def test_the_visualizer_draws_a_graph_without_cycles(traces: Path) -> None:
    words = ("--input_filename", "trace.0.et", "--output_filename", "out.graphml")
    tool("visualizer", *words, cwd=traces)
    graph = nx.read_graphml(traces / "out.graphml")
    _, nodes = messages.read(traces / "trace.0.et")
    assert nx.is_directed_acyclic_graph(graph)
    assert len(graph) == len(nodes)
    assert graph.number_of_edges() == sum(len(node.data) + len(node.control) for node in nodes)


def test_our_table_of_the_schema_is_theirs(tmp_path: Path) -> None:
    script = (
        "import json; from chakra.schema.protobuf import et_def_pb2 as schema\n"
        "print(json.dumps({name: {field.name: [field.number, field.is_repeated, field.type] "
        "for field in message.fields} "
        "for name, message in schema.DESCRIPTOR.message_types_by_name.items()}))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in ("GlobalMetadata", "Node", "AttributeProto", "IOInfo", "BoolList"):
        if name in ("IOInfo", "BoolList"):
            owner = {"IOInfo": ("Node", "inputs"), "BoolList": ("AttributeProto", "bool_list")}[
                name
            ]
            descriptor = chakra.message_class(owner[0]).DESCRIPTOR
            descriptor = descriptor.fields_by_name[owner[1]].message_type
        else:
            descriptor = chakra.message_class(name).DESCRIPTOR
        for field in descriptor.fields:
            number, is_repeated, kind = theirs[name][field.name]
            assert (field.number, field.is_repeated) == (number, is_repeated), field.name
            is_enum = (name, field.name) == ("Node", "type")  # an int32 has the same bytes
            assert is_enum or field.type == kind, field.name


def generated(folder: Path) -> None:
    """Their generator's traces of four ranks."""
    words = ("--num_npus", "4", "--default_comm_size", "1048576", "--default_runtime", "50")
    tool("generator", *words, cwd=folder)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ALL_REDUCE", "all-reduce"),
        ("ALL_GATHER", "all-gather"),
        ("REDUCE_SCATTER", "reduce-scatter"),
        ("ALL_TO_ALL", "all-to-all"),
        ("BROADCAST", "collective-broadcast"),
        ("BARRIER", "ncc.barrier"),
    ],
)
def test_their_collectives_are_ours(name: str, op: str, tmp_path: Path) -> None:
    generated(tmp_path)
    ((neff, ranks),) = ncc_compiler.compile_trace(tmp_path / name)
    (placeholder,) = neff.program.placeholders
    sizes = [neff.program.tensors[tensor].size_bytes for tensor in placeholder.operands]
    assert (placeholder.op.value, placeholder.groups) == (op, (ranks,))
    assert sizes == ([] if op == "ncc.barrier" else [1 << 20])
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    assert run.time_us is not None
    assert run.time_us > 15


@pytest.mark.parametrize(
    ("name", "us"),
    [
        ("one_comp_node", 50),
        ("two_comp_nodes_independent", 100),
        ("two_comp_nodes_dependent", 100),
        ("one_remote_mem_load_node", 2),
        ("one_remote_mem_store_node", 2),
        ("one_metadata_node_all_types", 0),
    ],
)
def test_their_instructions_take_their_time(name: str, us: int, tmp_path: Path) -> None:
    generated(tmp_path)
    run = ncc_runtime.load(ncc_compiler.compile_trace(tmp_path / name), "trn2").run(values=False)
    assert run.time_us == pytest.approx(15 + us, abs=0.4)


@pytest.mark.parametrize("name", ["one_comm_send_node", "one_comm_recv_node"])
def test_their_messages_without_a_peer_are_refused(name: str, tmp_path: Path) -> None:
    generated(tmp_path)
    with pytest.raises(CompileError, match=r"chakra-C6.*has no comm_(dst|src)"):
        ncc_compiler.compile_trace(tmp_path / name)


WORKLOADS = {
    "DATA": ["1 NONE 0", "1 NONE 0", "1 ALLREDUCE 1048576"],
    "MODEL": ["1 ALLGATHER 65536", "1 REDUCESCATTER 262144", "1 NONE 0"],
    "HYBRID_DATA_MODEL": ["1 ALLGATHER 65536", "1 REDUCESCATTER 262144", "1 ALLREDUCE 1048576"],
    "HYBRID_MODEL_DATA": ["1 ALLGATHER 65536", "1 ALLTOALL 262144", "1 ALLREDUCE 1048576"],
    "MICRO": ["0 NONE 0", "0 NONE 0", "0 ALLTOALL 1048576"],
}
OPERATORS = {
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "REDUCESCATTER": "reduce-scatter",
    "ALLTOALL": "all-to-all",
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_text_workloads_of_astra_sim_run(kind: str, tmp_path: Path) -> None:
    # name, dependency, then time, collective and bytes forward, of input and of weight gradients
    phases = WORKLOADS[kind]
    layers = [f"layer{k} -1 {' '.join(phases)} 5" for k in range(3)]
    (tmp_path / "model.txt").write_text("\n".join([kind, "3", *layers]) + "\n")
    words = ("Text", "--input", "model.txt", "--output", "model", "--num-npus", "8")
    tool("converter", *words, "--num-passes", "2", cwd=tmp_path)
    ((neff, _),) = ncc_compiler.compile_trace(tmp_path / "model")
    wanted = Counter[str]()
    for rank_nodes in messages.read_all(tmp_path, "model")[:1]:
        for node in rank_nodes:
            if node.kind == messages.COLL and node.attributes["comm_size"]:
                wanted[node.name.rsplit("_", 1)[1]] += 1
    found = Counter(one.op.value for one in neff.program.placeholders)
    assert found == Counter({OPERATORS[name]: count for name, count in wanted.items()})
    assert found
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    assert run.time_us is not None
    assert run.time_us > 15


def _pytorch_node(
    number: int, name: str, parent: int, duration: int = 0, **more: Any
) -> dict[str, Any]:
    nothing: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
    names = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
    attributes: list[dict[str, Any]] = [{"name": one, "value": number} for one in names]
    attributes.append({"name": "op_schema", "value": ""})
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": more.pop("inputs", nothing),
        "outputs": nothing,
        "exclusive_dur": duration,
        "inclusive_dur": duration,
        "ts": number,
        "attrs": attributes,
        **more,
    }


def _pytorch_trace(rank: int) -> dict[str, Any]:
    """What PyTorch's profiler and MLCommons' linker make of a product and an all-reduce."""
    groups = [
        {"pg_name": "0", "ranks": [], "group_size": 4},
        {"pg_name": "1", "ranks": [0, 1], "group_size": 2},
        {"pg_name": "2", "ranks": [2, 3], "group_size": 2},
    ]
    listed = {"values": [json.dumps(groups)], "shapes": [[]], "types": ["String"]}
    tensor = {
        "values": [[7, 8, 0, 4096, 4, "cuda:0"]],
        "shapes": [[4096]],
        "types": ["Tensor(float)"],
    }
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
    nodes = [
        _pytorch_node(1, "[pytorch|profiler|execution_trace|thread]", 0),
        _pytorch_node(2, "## process_group:init ##", 1, inputs=listed),
        _pytorch_node(3, "aten::mm", 1, 5),
        _pytorch_node(4, "ampere_sgemm_128x64", 3, 400, cat="kernel", stream=7),
        _pytorch_node(5, "record_param_comms", 1, 3, inputs=tensor),
        _pytorch_node(
            *(6, kernel, 5, 90),
            cat="kernel",
            stream=20,
            inputs=tensor,
            pg_name="1" if rank < 2 else "2",
        ),
        _pytorch_node(7, "aten::add", 1, 5),
        _pytorch_node(8, "vectorized_elementwise_kernel", 7, 30, cat="kernel", stream=7),
    ]
    head = {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "time": "now", "start_ts": 0, "finish_ts": 9}
    return {**head, "nodes": nodes}


def _converted(folder: Path, traces: Sequence[dict[str, Any]]) -> None:
    for rank, trace in enumerate(traces):
        (folder / f"torch.{rank}.json").write_text(json.dumps(trace))
        words = ("--input", f"torch.{rank}.json", "--output", f"torch.{rank}.et")
        tool("converter", "PyTorch", *words, cwd=folder)


def test_traces_of_pytorch_run_with_their_process_groups(tmp_path: Path) -> None:
    _converted(tmp_path, [_pytorch_trace(rank) for rank in range(4)])
    ((neff, _),) = ncc_compiler.compile_trace(tmp_path)
    (placeholder,) = neff.program.placeholders
    assert placeholder.op.value == "all-reduce"
    assert placeholder.groups == ((0, 1), (2, 3))
    assert neff.program.tensors[placeholder.operands[0]].size_bytes == 4 * 4096
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    assert run.time_us is not None
    # the device computes 430 us, one kernel after the other; what the host does is short
    assert 430 < run.time_us - 15 < 500
