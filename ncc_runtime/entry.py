"""Entry point of the commands: an interrupt prints one line, however early or late it comes.

Only built-in modules are imported here. While the command is loaded there is nothing to clean up,
so an interrupt ends the process at once; as an exception, modules that are just being imported
could swallow it or turn it into another. After that it is KeyboardInterrupt, as usual.
"""

import _signal  # type: ignore[import-not-found]  # signal itself takes long to import
import atexit
import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_INTERRUPTED = 130

NEW_CONTAINERS = 500_000
"""Objects made between collections of cycles: few are garbage, and each pass walks over all."""


def run(name: str, load: "Callable[[], Callable[[], int]]") -> int:
    """Load the command of that name and run it; returns the exit code."""
    handler = _signal.getsignal(_signal.SIGINT)
    takes_interrupts = handler is _signal.default_int_handler  # not so in the background of a shell
    if takes_interrupts:
        _signal.signal(_signal.SIGINT, _end)
    gc.set_threshold(NEW_CONTAINERS)  # to the end of the process
    atexit.register(gc.freeze)  # what ends with the process need not be searched for cycles
    # Products are computed on one thread, whatever the processors (values/devices.py). Told so
    # before numpy loads it, OpenBLAS starts no others, which would spin while they wait for work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ncc_runtime.record_code import used_for

    record_code = used_for(name)
    command = load()
    if takes_interrupts:
        _signal.signal(_signal.SIGINT, handler)
    try:
        code = command()
        if takes_interrupts:  # all is done and written
            _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        record_code.save()
    except KeyboardInterrupt:
        _end()
    return code


def _end(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


def main() -> int:
    """Run `nccrt`."""

    def load() -> "Callable[[], int]":
        from ncc_runtime.cli import main

        return main

    return run("nccrt", load)
