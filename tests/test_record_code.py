"""Methods of records are compiled once on a machine, and mean what attrs wrote."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from attr import _make as attrs_in_the_making

from ncc_runtime import record_code
from ncc_runtime.record_code import RecordCode, used_for

COUNTED = """
import builtins, sys
count, python = 0, compile
def counted(text, filename, *rest, **words):
    global count
    count += str(filename).startswith("<attrs generated methods ncc_")
    return python(text, filename, *rest, **words)
builtins.compile = counted
from {package}.entry import main
sys.argv[1:] = {arguments}
main()
print("COUNT", count)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; afterwards attrs compiles its texts as ever."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path / "ncc"
    vars(attrs_in_the_making).pop("compile", None)


def compiled_by(package: str, arguments: list[str], cache: Path) -> int:
    """Methods of our records that a command compiles in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED.format(package=package, arguments=arguments)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache.parent), "TMPDIR": str(cache.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.rpartition("COUNT ")[2])


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("ncc_compiler", ["check", "ir_examples/distributed_mean.ir"]),
        ("ncc_runtime", ["topology", "list"]),
    ],
)
def test_a_second_run_of_a_command_compiles_no_methods(
    package: str, arguments: list[str], cache: Path
) -> None:
    assert compiled_by(package, arguments, cache) > 0
    assert compiled_by(package, arguments, cache) == 0


def records() -> tuple[type, type, type]:
    """Classes made anew, with all that attrs writes."""

    @attrs.frozen(order=True)
    class Point:
        x: int
        y: int = attrs.field(default=2, converter=int, validator=attrs.validators.ge(0))

    @attrs.frozen(cache_hash=True)
    class Named:
        name: str
        parts: tuple[object, ...] = ()

    @attrs.define
    class Counter:
        count: int = 0

    return Point, Named, Counter


def behaviour_of(point: type, named: type, counter: type) -> list[object]:
    inner = named("n", (point(1),))
    counted = counter()
    counted.count += 1
    facts = [repr(inner), repr(counted), point(1) == point(1, "2"), point(1) < point(2)]
    facts += [hash(inner) == hash(named("n", (point(1),))), inner == attrs.evolve(inner)]
    facts += [len({point(1), point(1, 2), point(2)}), counter() == counter(0), counter.__hash__]
    for wrong in (lambda: point(), lambda: point(1, -1), lambda: setattr(inner, "name", "")):
        with pytest.raises((TypeError, ValueError, attrs.exceptions.FrozenInstanceError)):
            wrong()
    return facts


def test_kept_methods_do_what_compiled_ones_do() -> None:
    plain = behaviour_of(*records())
    code = used_for("t")
    assert behaviour_of(*records()) == plain
    code.save()
    again = used_for("t")
    assert again._known
    assert behaviour_of(*records()) == plain
    assert again._used.keys() == again._known.keys()


def test_classes_of_one_shape_differ_in_their_hash() -> None:
    used_for("t")
    classes = [attrs.make_class(name, ["x"], frozen=True) for name in ("First", "Second")]
    assert len({hash(each(1)) for each in classes}) == 2


def test_a_damaged_file_is_made_anew(cache: Path) -> None:
    used_for("t")
    records()
    code = used_for("t")
    records()
    code.save()
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:50] + b"\0" + whole[51:]):
        file.write_bytes(damaged)
        code = used_for("t")
        assert not code._known
        records()
        code.save()
        assert used_for("t")._known


def test_without_a_folder_that_can_be_written_all_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container of which nothing can be written, where Python finds no temporary folder."""

    def none_found() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    (tmp_path / "file").touch()
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "file" / name))
    monkeypatch.setattr("tempfile.gettempdir", none_found)
    code = used_for("t")
    assert behaviour_of(*records())
    code.save()
    assert not used_for("t")._known


def test_a_hash_of_another_form_is_compiled_in_each_process() -> None:
    code = RecordCode("t")
    text = "def f(self):\n    return hash((self.salt, 1))\n"
    assert code.compiled(text, "f", "exec").co_filename == "f"
    assert not code._used


def test_what_attrs_may_come_to_compile_otherwise_is_compiled_in_each_process() -> None:
    code = RecordCode("t")
    assert code.compiled(ast.parse("a = 1"), "f", "exec").co_filename == "f"
    assert code.compiled("a = 1", "f", "exec", 0, True).co_filename == "f"
    assert code.compiled("a = 1", "f", "exec", dont_inherit=True).co_filename == "f"
    assert not code._used


def test_old_texts_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_code, "MOST", 3)
    for names in ("abc", "cd"):
        code = RecordCode("t")
        for name in names:
            code.compiled(f"{name} = 1", name, "exec")
        code.save()
        assert len(RecordCode("t")._known) == len(names)
