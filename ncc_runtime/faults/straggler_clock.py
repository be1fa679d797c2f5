"""A clock for stragglers: engines that are slow for a whole run, ranks that launch late.

It sets these in the state that the clock begins with, and then runs the clock as it is.
"""

import numpy as np

from ncc_runtime.execution.clock import clock
from ncc_runtime.execution.clock.event_log import EventLog, trace_of
from ncc_runtime.execution.clock.instances import unreduced
from ncc_runtime.execution.clock.programs import ProgramTables
from ncc_runtime.execution.clock.tables import DONE, INCREMENTS_FULL, LOG_FULL, empty
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel


class StragglerClock:
    """The times of a program whose ranks differ in the speed of their engines and their launch."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._model = TimingModel.from_topology(executable.topology)
        self._parts = Parts(executable.routes, self._model, executable.ranks)
        self.launch_ps = clock.launch_ps(executable, self._model)

    def run(self, disturbance: Disturbance) -> Trace:
        """The times of all ranks; speeds of engines count in whole percent, 1 at least."""
        executable = self._executable
        instances, log = unreduced(executable), EventLog(1 << 24)
        tables = ProgramTables(executable, self._parts, instances)
        program = tables.program(PlannedDecisions(executable, {}), {})
        ranks = instances.ranks
        machine = clock.machine_of(executable, self._model, program, ranks)
        for speed in disturbance.queues:
            percent = max(1, speed.speed * 100 // FULL_SPEED)
            machine.process["percent"][speed.queue * ranks + speed.rank] = percent
        for rank, late_ps in disturbance.late_start_ps.items():
            machine.process["free"][rank::ranks] += late_ps
        machine = machine._replace(event=log.first_table(program.events + 1))
        while (why := clock._go_on(machine)) != DONE:
            if why == LOG_FULL:
                machine = log.room(machine)
            elif why == INCREMENTS_FULL:
                more = empty("increment", max(64, len(machine.increment)))
                machine = machine._replace(increment=np.concatenate((machine.increment, more)))
        log.close(machine)
        return trace_of(executable, machine, instances, log)
