"""The entry point of `nccc`."""

from ncc_runtime.entry import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run `nccc`."""

    def load() -> "Callable[[], int]":
        from ncc_compiler.cli import main

        return main

    return run("nccc", load)
