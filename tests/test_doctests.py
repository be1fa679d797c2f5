"""The examples in docstrings of public names give what they show."""

import doctest
import importlib
import inspect

import pytest

PACKAGES = ("ncc_compiler", "ncc_runtime")


def examples() -> list[doctest.DocTest]:
    """Of every public name and the methods that it has itself."""
    found = []
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            public = getattr(package, name)
            if callable(public):
                home = inspect.getmodule(public)
                tests = doctest.DocTestFinder().find(public, name, module=home)
                found += [test for test in tests if test.examples]
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_gives_what_it_shows(example: doctest.DocTest) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_there_are_examples() -> None:
    assert len(examples()) > 4
