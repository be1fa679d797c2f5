"""XLA's own parser of HLO text: a process that says of each text whether it is HLO.

`python -m tests.oracle.xla_parser` reads a text as a line of JSON, and answers with one: the text
as XLA prints it back, or null. It runs apart because XLA ends the process on some texts.
"""

import json
import subprocess
import sys

from jaxlib import _hlo

from tests.oracle.children import ROOT, environment


class BrokenDownError(Exception):
    """XLA ended its process: the text is neither taken nor refused."""


class XlaParser:
    """Asks the process, and starts another one when XLA has ended it."""

    def __init__(self) -> None:
        self._child = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.oracle.xla_parser"],
            env=environment(""),
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def printed(self, text: str) -> str | None:
        """The text as XLA prints it, None if its parser refuses it."""
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(text) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            self._child.communicate()
            self._child = self._started()
            raise BrokenDownError(text)
        printed: str | None = json.loads(answer)
        return printed

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def main() -> None:
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    for line in sys.stdin:
        try:
            answer = _hlo.hlo_module_from_text(json.loads(line)).to_string(options)
        except Exception:  # noqa: BLE001 - jaxlib raises many kinds, all about the text
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
