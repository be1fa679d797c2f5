"""The parser's tables are made once, and kept in the user's cache."""

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from ncc_compiler.syntax import parse as parsing
from tests.compiler.reading import complaints
from tests.draws import HLO

TEXT = (HLO / "mlp_train_dp2_tp4.hlo").read_text()
WRONG = "HloModule m\nx = f32[2] parameter(0\ny = f32[2] negate(x)\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no folder for temporary files."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "absent"))
    parsing._lark.cache_clear()
    yield tmp_path / "ncc"
    parsing._lark.cache_clear()


def reading() -> tuple[object, object]:
    """What a new process reads: a real program, and what is wrong with another text."""
    parsing._lark.cache_clear()
    file, found = parsing.parse(parsing.Source("t", TEXT))
    tree = attrs.asdict(file, filter=lambda field, _: field.name != "source")
    return (tree, found), complaints(WRONG)


def test_tables_that_are_kept_read_as_those_that_were_made(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reading()
    assert made[1]
    assert len(list(cache.iterdir())) == 1

    def make(*_: object, **__: object) -> None:
        pytest.fail("they are there")

    monkeypatch.setattr(parsing.Lark, "__init__", make)
    assert reading() == made


def test_damaged_tables_are_made_anew(cache: Path) -> None:
    made = reading()
    (tables,) = cache.iterdir()
    whole = tables.read_bytes()
    for damaged in (b"", whole[:-1], whole[:100] + b"\0" + whole[101:]):
        tables.write_bytes(damaged)
        assert reading() == made
        assert parsing.kept(tables) is not None


def test_without_a_place_for_tables_texts_are_read_all_the_same(cache: Path) -> None:
    made = reading()
    for tables in cache.iterdir():
        tables.unlink()
    cache.rmdir()
    cache.write_text("a file, where a folder should be")
    assert reading() == made
