"""Writes one program in every format: `python -m tests.oracle.write_formats FOLDER`.

Partitioned it is one.*, and dump.hlo.pb as XLA dumps it; annotated only, the other names.
"""

import io
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _hlo, _jax

from tests.oracle.declare import mesh

PARTITIONED = """HloModule one, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4,6]) -> (f32[4,6], u32[]) {
  %x = f32[4,6]{1,0} parameter(0)
  %r = f32[4,6]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, \
use_global_device_ids=true, to_apply=%sum
  %k = f32[4,6]{1,0} constant({TABLE})
  %s = f32[4,6]{1,0} add(%r, %k)
  %t = f32[4,6]{1,0} tanh(%s)
  %p = u32[] partition-id()
  ROOT %all = (f32[4,6]{1,0}, u32[]) tuple(%t, %p)
}
"""


def bytecode(lowered) -> bytes:
    out = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(out)
    return out.getvalue()


def write_partitioned(folder: Path) -> None:
    """A text, and what jaxlib makes of it."""
    rows = ["{" + ", ".join(str(6 * row + k) for k in range(6)) + "}" for row in range(4)]
    text = PARTITIONED.replace("{TABLE}", "{" + ", ".join(rows) + "}")
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    module = _jax.mlir.hlo_to_stablehlo(proto)
    context = jax.interpreters.mlir.make_ir_context()
    pretty = str(jax.interpreters.mlir.ir.Module.parse(module, context))
    portable = _jax.mlir.serialize_portable_artifact(pretty.encode(), "1.9.0")
    (folder / "one.hlo").write_text(text)
    (folder / "one.pb").write_bytes(proto)
    (folder / "one.mlirbc").write_bytes(module)
    (folder / "one.mlir").write_text(pretty)
    (folder / "one.portable.mlir").write_bytes(portable)


def write_dumped(folder: Path) -> None:
    """The same program from jax, as XLA dumps it after and before partitioning."""

    @partial(shard_map, mesh=mesh(i=8), in_specs=P("i"), out_specs=(P("i"), P("i")))
    def function(x):
        table = jnp.arange(24, dtype=jnp.float32).reshape(4, 6)
        total = lax.pcast(lax.psum(x, "i"), "i", to="varying")
        return jnp.tanh(total + table), lax.axis_index("i")[None]

    lowered = jax.jit(function).lower(jax.ShapeDtypeStruct((32, 6), jnp.float32))
    lowered.compile()
    (after,) = (folder / "dump").glob("*after_spmd-partitioning*.hlo.pb")
    (before,) = (folder / "dump").glob("*before_spmd-partitioning.hlo.pb")
    after.rename(folder / "dump.hlo.pb")
    before.rename(folder / "before.hlo.pb")
    (folder / "manual.mlir").write_text(lowered.as_text())


def write_annotated(folder: Path, name: str) -> None:
    """A product whose factors are sharded, in the dialect that is switched on."""
    world = mesh(dp=4, tp=2)
    shardings = NamedSharding(world, P("dp")), NamedSharding(world, P(None, "tp"))
    factors = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
    lowered = jax.jit(lambda x, w: (x @ w).sum(), in_shardings=shardings).lower(*factors)
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    (folder / f"{name}.mlir").write_text(lowered.as_text())
    (folder / f"{name}.mlirbc").write_bytes(bytecode(lowered))
    (folder / f"{name}.pb").write_bytes(proto)
    (folder / f"{name}.hlo").write_text(lowered.as_text(dialect="hlo"))
    (folder / "optimised.hlo").write_text(lowered.compile().as_text())


def main() -> None:
    folder = Path(sys.argv[1])
    write_partitioned(folder)
    write_dumped(folder)
    write_annotated(folder, "shardy")
    jax.config.update("jax_use_shardy_partitioner", False)
    write_annotated(folder, "gspmd")


if __name__ == "__main__":
    main()
