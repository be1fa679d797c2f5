"""A process that runs HLO texts on XLA's CPU backend: `python -m tests.oracle.xla_server`.

A line on standard input names a folder with model.hlo and in.npz (arrays [ranks, *shape]); the
outputs go to out.npz in it, and a line to standard output: empty, or what XLA refused. The texts
are partitioned already, so the passes that would do it are switched off (see `xla.py`).
"""

import re
import sys
from pathlib import Path

import jax
import numpy as np
from jax._src import compiler
from jax._src.lax import linalg
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _hlo, _jax, xla_client

from tests.oracle import arrays


class UnreadableError(Exception):
    """XLA's parser does not take the text."""


def read(text: str) -> _hlo.HloModule:
    try:
        return _hlo.hlo_module_from_text(text)
    except jax.errors.JaxRuntimeError as error:
        raise UnreadableError(str(error)) from error


def run(folder: Path) -> None:
    text = (folder / "model.hlo").read_text()
    world = [_header_number(text, key) for key in ("replica_count", "num_partitions")]
    cpu = backend.get_backend("cpu")
    devices = cpu.devices()[: world[0] * world[1]]
    module = _jax.mlir.hlo_to_stablehlo(read(text).as_serialized_hlo_module_proto())
    options = compiler.get_compile_options(
        num_replicas=world[0],
        num_partitions=world[1],
        device_assignment=np.arange(len(devices)).reshape(world),
    )
    program = cpu.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
    everywhere = NamedSharding(Mesh(np.array(devices), ("rank",)), PartitionSpec())
    inputs = [
        jax.make_array_from_single_device_arrays(
            array.shape[1:],
            everywhere,
            [jax.device_put(part, device) for part, device in zip(array, devices, strict=True)],
        )
        for array in arrays.load(folder / "in.npz").values()
    ]
    results = program.execute_sharded(inputs).disassemble_into_single_device_arrays()
    outputs = [np.stack([np.asarray(part) for part in result]) for result in results]
    arrays.save(folder / "out.npz", arrays.numbered("out", outputs))


def _header_number(text: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", text.partition("\n")[0])
    return int(found[1]) if found else 1


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    linalg.initialize_lapack()
    for line in sys.stdin:
        try:
            run(Path(line.strip()))
            answer = ""
        except UnreadableError as error:
            answer = f"unreadable: {error}".replace("\n", " ")
        except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
            answer = f"cannot be run: {error}".replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
