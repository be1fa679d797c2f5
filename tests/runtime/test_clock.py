"""The clock as a run reports it: what a collective hides behind compute, and what it waits for."""

import ncc_compiler
import ncc_runtime
from ncc_runtime.machine_model.compute import compute_costs
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.programs import collective_program


def us(picoseconds: int) -> float:
    return picoseconds / 1e6


def test_compute_beside_a_collective_is_not_exposed():
    text = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY e {
  x = f32[512,512] parameter(0)
  s = f32[512,512] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  d = f32[512,512] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[512,512], f32[512,512]) tuple(s, d)
}
"""
    run = ncc_runtime.load(ncc_compiler.compile_text(text)).run(values=False)
    (row,) = run.collectives
    hidden = row.time_us - row.exposed_us
    model = TimingModel.from_topology(run.trace.executable.topology)
    tensor = next(engine for engine in model.engines if engine.value == "Tensor")
    program = run.trace.executable.program
    dot = int(compute_costs(program, model, tensor, program.queues[tensor]).ps.max())
    assert 0 < hidden <= us(dot)
    assert hidden > 0.9 * us(dot)


def test_a_lost_credit_changes_what_a_ring_may_do():
    """Every remote write waits for `ready`, and from the third slot on for `free`."""
    executable = ncc_runtime.load(
        collective_program(CollectiveOp.REDUCE_SCATTER, 5, [50]),
        algorithms={"reduce-scatter": "ring"},
    ).executable
    names = executable.semaphore_names(0)
    queue = next(queue for queue in executable.queues if queue.name == "cc0")
    waited = [
        (names[int(sem)], int(value))
        for sem, value in zip(queue.sync.wait_sem[:, 0], queue.sync.wait_value[:, 0], strict=True)
        if sem >= 0
    ]
    assert ("cc0.ready.1.0", 1) in waited
    assert [value for name, value in waited if name == "cc0.free.1.0"] == [1, 2]
