"""`nccrt`, one of whose processes may fail: FAILS=2:killed:perform, by number, way and place."""

import os
import signal
import sys
from typing import Any

from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.launcher import launched


def _fail(way: str) -> None:
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "memory":
        raise MemoryError("no room")
    if way == "refused":
        raise InputError("arg0 holds 9; s4 goes from -8 to 7")
    raise ValueError("unexpected")


def _prepare(number: str, way: str, place: str) -> None:
    if launched()[0] != int(number):
        return
    if place == "import":  # as where the package is not installed
        sys.modules["mpi4py"] = None  # type: ignore[assignment]
        return

    def fails(*_: Any, **__: Any) -> None:
        _fail(way)

    if place == "perform":
        from ncc_runtime.execution.values.devices import Devices

        Devices.perform = fails  # type: ignore[method-assign]
    else:
        from ncc_runtime import sharded_arrays

        sharded_arrays.write_safetensors = fails  # type: ignore[assignment]


if __name__ == "__main__":
    for one in os.environ.get("FAILS", "").split():
        _prepare(*one.split(":"))
    sys.exit(main())
