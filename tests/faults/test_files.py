"""Files of faults: the shipped schema, the examples, mistakes with their places, random damage."""

import random
from pathlib import Path

import pytest

from ncc_runtime.errors import InputError
from ncc_runtime.faults import files
from ncc_runtime.faults.files import example_names, read_faults

FOLDER = Path(files.__file__).parent


def test_the_shipped_schema_is_the_one_that_files_are_checked_by() -> None:
    assert (FOLDER / "faults.schema.json").read_text() == files.schema_text()


@pytest.mark.parametrize("name", example_names())
def test_examples_are_read(name: str) -> None:
    found = read_faults(FOLDER / "examples" / name)
    assert found
    assert all(fault.source for fault in found)


def test_times_have_keys_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(
        '[[fault]]\nwhat = "link c0-c1 down"\nat = "120us"\nfor = "50us"\nsource = "seen in May"\n'
        '[[fault]]\nwhat = "rank 3 dead"\nrun = 2\nof = "all-reduce.1"\n'
    )
    first, second = read_faults(path)
    assert str(first) == "at 120us: link c0-c1 down for 50us"
    assert first.source == "seen in May"
    assert str(second) == "at run 2 of all-reduce.1: rank 3 dead"


MISTAKES = {
    '[[fault]]\nwhat = "rank 3 daed"\n': (2, "did you mean dead?"),
    '[[fault]]\nwhat = "rank 3 dead"\nat = "soon"\n': (3, 'a time such as "50us"'),
    '[[fault]]\nwhat = "rank 3 dead"\nwhen = "5us"\n': (3, "when"),
    '[[fault]]\nat = "5us"\n': (1, "what"),
    '[[fault]]\nwhat = "rank 3 dead"\nrun = 2\n': (1, "of"),
    '[[fault]]\nwhat = "rank 3 dead"\nrun = 0\nof = "p0"\n': (3, "from 1"),
    '[[fault]]\nwhat = "at 5us: rank 3 dead"\nat = "6us"\n': (2, ""),
    "[[fault]\n": (1, ""),
    '[[fault]]\nwhat = "rank 3 dead"\nwhat = "rank 2 dead"\n': (3, ""),
    "fault = 3\n": (1, "a list of tables"),
    "": (1, "fault"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    line, said = MISTAKES[text]
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        read_faults(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:{line}:")
    assert said in message
    assert "\n" not in message


def test_damaged_files_are_refused_in_one_line_or_read(tmp_path: Path) -> None:
    generator = random.Random(19)
    whole = [(FOLDER / "examples" / name).read_bytes() for name in example_names()]
    path = tmp_path / "faults.toml"
    for _ in range(300):
        data = bytearray(generator.choice(whole))
        for _ in range(generator.randint(1, 6)):
            at = generator.randrange(len(data))
            match generator.randrange(3):
                case 0:
                    data[at] = generator.randrange(256)
                case 1:
                    del data[at : at + generator.randint(1, 20)]
                case _:
                    data[at:at] = data[generator.randrange(len(data)) :][:20]
            if not data:
                break
        path.write_bytes(data)
        try:
            read_faults(path)
        except InputError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
