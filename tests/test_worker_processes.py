"""Work that several processes share: the order of its results, errors, and how it ends."""

import os
import signal
import subprocess
import sys

import pytest

from ncc_runtime.errors import NccError, NeffError
from ncc_runtime.worker_processes import in_order

PIPES_ARE_FULL = 1 << 20


def test_results_come_in_order_and_from_as_many_processes() -> None:
    found = list(in_order(lambda item: (item, os.getpid(), b"." * PIPES_ARE_FULL), 10, 3))
    assert [item for item, *_ in found] == list(range(10))
    assert [process for _, process, _ in found] == [found[n % 3][1] for n in range(10)]
    assert len({process for _, process, _ in found} - {os.getpid()}) == 3


def test_one_process_needs_no_other() -> None:
    assert list(in_order(lambda _: os.getpid(), 2, 1)) == [os.getpid()] * 2


def test_an_error_is_raised_in_its_turn() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise NeffError("no such thing")
        return item

    results = in_order(work, 6, 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(NeffError, match="no such thing") as caught:
        next(results)
    assert "in work" in caught.value.__notes__[0]


class TwoWordsError(Exception):
    """Cannot be unpickled: it is told one word."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_an_error_that_cannot_be_sent_is_told() -> None:
    def work(_: int) -> None:
        raise TwoWordsError("no ", "such thing")

    with pytest.raises(RuntimeError, match="no such thing"):
        list(in_order(work, 2, 2))


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(NccError, match="has ended"):
        list(in_order(lambda _: os.kill(os.getpid(), signal.SIGKILL), 4, 2))


FOR_EVER = """
import os, signal, time
from ncc_runtime.worker_processes import in_order
def work(_):
    os.write(1, b"began;")
    while os.getppid() == parent:
        time.sleep(0.05)
parent = os.getpid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
list(in_order(work, 100, 2))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_began(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOR_EVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as begun:
        assert begun.stdout is not None
        assert begun.stdout.read(12) == b"began;" * 2
        begun.send_signal(how)
        try:
            rest, _ = begun.communicate(timeout=60)  # until nobody holds its standard output
        except subprocess.TimeoutExpired:
            begun.kill()
            raise
        assert rest == b""
        assert begun.returncode == -how or how is signal.SIGINT
