"""What the values of whole models take, beside JAX's virtual CPU devices.

Two programs of 8 ranks in float32, without the clock, and JAX's own on 8 virtual devices, again and
again in one process, in turn. Ours is compiled by `from_jax`, placed and proved. Prints the medians
of wall time and of processor time, ours over JAX's, and the time until the first run can begin:
tracing and partitioning by XLA, compiling, loading and proving, beside XLA's compilation. Outputs
must agree.

    block  forward pass of a tensor-parallel transformer block: 8 sequences of 128 tokens, width
           1,024, 16 heads, 4,096 hidden units
    mlp    step of data-parallel training: forward, backward and SGD of two matrices, 1,024 tokens a
           rank, width 1,024, 4,096 hidden units
    seeded  not beside JAX: two layers of width 1,024 on 64 ranks with inputs drawn from a seed

Run: python benchmarks/model_values.py [PROGRAM ...] [--repeat 5] [--threads 2] [--level 1]
     python benchmarks/model_values.py block --where        # where our time goes, by opcode
"""

import argparse
import collections
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ncc_compiler  # noqa: E402
import ncc_runtime  # noqa: E402
from ncc_compiler.options import CompileOptions  # noqa: E402
from ncc_runtime.execution.values.devices import Devices  # noqa: E402
from ncc_runtime.inputs import bound_inputs, checked_input  # noqa: E402
from ncc_runtime.lowering.executable import EngineQueue  # noqa: E402

WIDTH, HIDDEN, HEADS, BATCH, LENGTH = 1024, 4096, 16, 8, 128


@attrs.frozen
class Program:
    """A function of JAX, and the shapes and shardings of its arguments, by name."""

    function: Callable[..., Any]
    mesh: Mapping[str, int]
    arguments: Mapping[str, tuple[tuple[int, ...], P]]

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Of the whole arrays."""
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.float32)
            for name, (shape, _) in self.arguments.items()
        }

    @property
    def specs(self) -> dict[str, P]:
        """How the arrays are cut."""
        return {name: spec for name, (_, spec) in self.arguments.items()}


def normed(x: Any, scale: Any) -> Any:
    """RMSNorm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def block(x: Any, w: Mapping[str, Any]) -> Any:
    """Causal attention and a gated-free MLP, with residual connections."""
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    h = normed(x, w["norm1"])
    q, k, v = ((h @ w[name]).reshape(heads) for name in ("q", "k", "v"))
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / heads[-1] ** 0.5
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    mixed = jnp.einsum("bhlm,bmhd->blhd", shares, v).reshape(x.shape)
    x = x + mixed @ w["o"]
    return x + jax.nn.gelu(normed(x, w["norm2"]) @ w["up"]) @ w["down"]


BLOCK = {
    "q": ((WIDTH, WIDTH), P(None, "model")),
    "k": ((WIDTH, WIDTH), P(None, "model")),
    "v": ((WIDTH, WIDTH), P(None, "model")),
    "o": ((WIDTH, WIDTH), P("model")),
    "up": ((WIDTH, HIDDEN), P(None, "model")),
    "down": ((HIDDEN, WIDTH), P("model")),
    "norm1": ((WIDTH,), P()),
    "norm2": ((WIDTH,), P()),
}


def block_of(a: Mapping[str, Any]) -> Any:
    return block(a["x"], a)


def layers_step(a: Mapping[str, Any]) -> Any:
    """The loss of two layers before a step, and all parameters behind it."""

    def loss(w: Mapping[str, Any]) -> Any:
        x = a["x"]
        for layer in (0, 1):
            x = block(x, {name: w[f"{name}{layer}"] for name in BLOCK})
        return jnp.mean(x * x)

    w = {name: array for name, array in a.items() if name != "x"}
    value, gradients = jax.value_and_grad(loss)(w)
    return value, {name: array - 0.1 * gradients[name] for name, array in w.items()}


def mlp_step(a: Mapping[str, Any]) -> Any:
    """The loss before the step, and both matrices behind it."""

    def loss(w1: Any, w2: Any) -> Any:
        return jnp.mean((jax.nn.gelu(a["x"] @ w1) @ w2 - a["y"]) ** 2)

    value, (g1, g2) = jax.value_and_grad(loss, (0, 1))(a["w1"], a["w2"])
    return value, a["w1"] - 0.1 * g1, a["w2"] - 0.1 * g2


TOKENS = ((8 * 1024, WIDTH), P("data"))
PROGRAMS = {
    "block": Program(block_of, {"model": 8}, {"x": ((BATCH, LENGTH, WIDTH), P()), **BLOCK}),
    "mlp": Program(
        mlp_step,
        {"data": 8},
        {"x": TOKENS, "y": TOKENS, "w1": ((WIDTH, HIDDEN), P()), "w2": ((HIDDEN, WIDTH), P())},
    ),
    "seeded": Program(
        layers_step,
        {"data": 8, "model": 8},
        {
            "x": ((8 * BATCH, LENGTH, WIDTH), P("data")),
            **{f"{name}{layer}": item for layer in (0, 1) for name, item in BLOCK.items()},
        },
    ),
}


def loaded(program: Program, level: int) -> tuple[ncc_runtime.Model, float]:
    """The program placed and proved, and what that took in seconds of the processor."""
    start = time.process_time()
    neff = ncc_compiler.from_jax(
        program.function,
        program.shapes,
        mesh=dict(program.mesh),
        in_shardings=(program.specs,),
        options=CompileOptions(level=level),
    )
    model = ncc_runtime.load(neff, "trn2")
    model.proofs  # noqa: B018
    return model, time.process_time() - start


def compared(name: str, level: int, repeat: int, threads: int) -> str:
    """A line of the table."""
    program = PROGRAMS[name]
    model, before_s = loaded(program, level)
    generator = np.random.default_rng(0)
    arrays = {
        key: generator.standard_normal(shape.shape, np.float32) / 32
        for key, shape in program.shapes.items()
    }
    mesh = jax.make_mesh(tuple(program.mesh.values()), tuple(program.mesh))
    shardings = {key: NamedSharding(mesh, spec) for key, spec in program.specs.items()}
    start = time.process_time()
    function = jax.jit(program.function, in_shardings=(shardings,)).lower(program.shapes).compile()
    compile_s = time.process_time() - start
    on_devices = jax.device_put(arrays, shardings)
    given = per_rank(model, arrays)
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: model.run(given, clock=False, threads=threads),
        "JAX": lambda: jax.block_until_ready(function(on_devices)),
    }
    wanted = jax.tree.leaves(jax.tree.map(np.asarray, sides["JAX"]()))
    result = jax.tree.leaves(sides["ours"]().result)
    for ours, theirs in zip(result, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)
    del result
    wall: dict[str, list[float]] = {side: [] for side in sides}
    processor: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeat):
        for side, run in sides.items():
            start, used = time.perf_counter(), time.process_time()
            run()
            wall[side].append(time.perf_counter() - start)
            processor[side].append(time.process_time() - used)
    cells = []
    for taken in (wall, processor):
        ours, theirs = (statistics.median(taken[side]) for side in sides)
        cells += [f"{ours * 1e3:.0f}", f"{theirs * 1e3:.0f}", f"{ours / theirs:.2f}"]
    cells += [f"{before_s:.2f}", f"{compile_s:.2f}", f"{before_s / compile_s:.2f}"]
    return f"{name:<10}" + "".join(f"{cell:>11}" for cell in cells)


def per_rank(model: ncc_runtime.Model, arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """Arrays of each rank, as JAX's lie on its devices: nothing is cut while time is taken."""
    program = model.executable.program
    flat = jax.tree.leaves(dict(arrays))  # in the order of parameters
    assert len(flat) == len(program.inputs), "no argument is dropped"
    return [
        np.ascontiguousarray(array)
        if array.shape == program.tensors[tensor].shape
        else np.ascontiguousarray(checked_input(program, number, array))
        for number, (array, tensor) in enumerate(zip(flat, program.inputs, strict=True))
    ]


def seeded(name: str, level: int, threads: int) -> str:
    """One run with drawn inputs, of a model that is loaded; wall time."""
    model, before_s = loaded(PROGRAMS[name], level)
    start, used = time.perf_counter(), time.process_time()
    model.run(seed=0, clock=False, threads=threads)
    wall_s, used_s = time.perf_counter() - start, time.process_time() - used
    start = time.perf_counter()
    for array in bound_inputs(model.executable.program, {}, 0):
        del array
    drawing_s = time.perf_counter() - start
    return (
        f"{name}: run {wall_s:.2f} s, processor {used_s:.2f} s; drawing alone {drawing_s:.2f} s; "
        f"before it {before_s:.2f} s"
    )


def where(name: str, level: int) -> str:
    """Processor time of a run by instruction, on one thread, as the devices perform each."""
    model, _ = loaded(PROGRAMS[name], level)
    taken: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()

    def timed(self: Devices, number: int, row: int, *rest: Any) -> None:
        start = time.thread_time()
        plain(self, number, row, *rest)
        queue = model.executable.queues[number]
        assert isinstance(queue, EngineQueue), queue.name
        instr = queue.table[row]
        tensors = model.executable.program.tensors
        shapes = ", ".join(tensors[tensor].type_text for tensor in instr.operands)
        results = ", ".join(tensors[tensor].type_text for tensor in instr.results)
        text = f"{instr.opcode}({shapes}) -> {results}"
        taken[text] += time.thread_time() - start
        calls[text] += 1

    plain, Devices._compute = Devices._compute, timed  # type: ignore[method-assign]
    model.run(seed=0, clock=False, threads=1)
    taken.clear()
    calls.clear()
    start = time.thread_time()
    model.run(seed=0, clock=False, threads=1)
    total = time.thread_time() - start
    lines = [
        f"{seconds * 1e3:9.1f} ms {calls[text]:4} x {text}"
        for text, seconds in taken.most_common(20)
    ]
    lines.append(
        f"{(total - sum(taken.values())) * 1e3:9.1f} ms        all else, of {total * 1e3:.1f}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=["block", "mlp"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", type=int, default=1, help="of optimisation")
    parser.add_argument("--where", action="store_true")
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, numpy {np.__version__}")
    heads = [one for unit in ("ms", "CPU ms", "before s") for one in (unit, "JAX", "ratio")]
    print(f"{'':10}" + "".join(f"{head:>11}" for head in heads))
    for name in arguments.programs:
        if arguments.where:
            print(name, where(name, arguments.level), sep="\n", flush=True)
        elif name == "seeded":
            print(seeded(name, arguments.level, arguments.threads), flush=True)
        else:
            print(compared(name, arguments.level, arguments.repeat, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
