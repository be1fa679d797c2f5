"""Options of the whole test suite."""

import math

import hypothesis
import pytest

from ncc_runtime import progress_bar

# A deadline would make a verdict depend on how busy the machine is, and a random choice of examples
# on luck: the suite tries the same examples each time, `make test-random` new ones. `make test`
# tries a third of them (`tests/example_count.py`), `make test-slow` all.
hypothesis.settings.register_profile("many", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile(
    "ncc", hypothesis.settings.get_profile("many"), max_examples=34
)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.load_profile("ncc")

# On a busy machine, lines of progress would come between the lines that tests expect.
progress_bar.FIRST_LINE_S = math.inf


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="rewrite the expected outputs in tests/golden; read the diff before you commit it",
    )
    parser.addoption(
        "--pictures",
        action="store_true",
        default=False,
        help="let pages of docs/ write the pictures that their commands draw into docs/images",
    )


LONG_FIRST = ("test_docs.py", "test_help.py", "test_examples.py")
"""Files of single tests that take long: at the end one worker would be alone with them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FIRST)
