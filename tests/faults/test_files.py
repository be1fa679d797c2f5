"""Files of faults: the shipped schema, the examples, mistakes with their places, random damage."""

import contextlib
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


FAULT = '[[fault]]\nwhat = "rank 3 dead"\n'

MISTAKES = {
    '[[fault]]\nwhat = "rank 3 daed"\n': (2, 8, "'rank 3 daed' is no fault: column 8, at 'daed'"),
    '\r\n[[fault]]\r\nwhat = "rank 3 daed"\r\n': (3, 8, "did you mean dead?"),
    '\ufeff[[fault]]\nwhat = ""\n': (2, 8, "at the end: expected adapter, at, bit"),
    '[[fault]]\nwhat = "rank 3\\ndead"\n': (2, 8, "'rank 3\\ndead' is not a fault such as"),
    '[[fault]]\nwhat = "rank 3 slow to 1e400%"\n': (2, 8, "expected a percentage such as 50%"),
    '[[fault]]\nwhat = "rank 3 late by nanus"\n': (2, 8, "a time such as 50us"),
    f'[[fault]]\nwhat = "rank {"9" * 23} dead"\n': (2, 8, "is too large a number"),
    f'[[fault]]\nwhat = "{"rank 3 " * 200}"\n': (2, 8, "is not a fault such as"),
    f'{FAULT}at = "soon"\n': (3, 6, "fault 0: at: 'soon' is not a time such as \"50us\""),
    f'{FAULT}at = "-5us"\n': (3, 6, "'-5us' is not a time"),
    f'{FAULT}at = "1e400us"\n': (3, 6, "'1e400us' is not a time"),
    f"{FAULT}at = nan\n": (3, 6, "nan is not a time"),
    f"{FAULT}at = 1e400\n": (3, 6, "inf is not a time"),
    f'{FAULT}at = "{"9" * 50}s"\n': (2, 8, "s is more than 1,000 s"),
    f'{FAULT}for = "0us"\n': (2, 8, "it lasts no time"),
    f'{FAULT}at = "5us"\nuntil = "4us"\n': (2, 8, "it ends before it begins"),
    f'{FAULT}when = "5us"\n': (3, 8, "unknown key; known: what, at, run"),
    '[[fault]]\nat = "5us"\n': (1, 3, "fault 0: what: missing"),
    f"{FAULT}run = 2\n": (3, 7, "run: goes with of, which is missing"),
    f'{FAULT}run = 0\nof = "p0"\n': (3, 7, "0 is not the number of a run of a collective, from 1"),
    f'{FAULT}run = {"9" * 30}\nof = "p0"\n': (3, 7, "is not the number of a run"),
    f'{FAULT}run = 2\nof = ""\n': (4, 6, "'' is not a collective such as"),
    f'{FAULT}run = 2\nof = "p0 for 5us"\n': (4, 6, "'p0 for 5us' is not a collective such as"),
    f"{FAULT}source = 3\n": (3, 10, "the source of its figures is a line of text"),
    f'{FAULT}source = ""\n': (3, 10, "the source of its figures is a line of text"),
    '[[fault]]\nwhat = "at 5us: rank 3 dead"\nat = "6us"\n': (2, 8, "it says twice when"),
    f'{FAULT}{FAULT}[[fault]]\nwhat = "rank 3 daed"\n': (6, 8, "did you mean dead?"),
    "[[fault]\n": (1, 8, "not TOML"),
    f'{FAULT}what = "rank 2 dead"\n': (3, 21, "not TOML: cannot overwrite a value"),
    "fault = 3\n": (1, 9, "3 is not a list of tables, each under [[fault]]"),
    '[fault]\nwhat = "rank 3 dead"\n': (1, 2, "is not a list of tables, each under [[fault]]"),
    '[[faults]]\nwhat = "rank 3 dead"\n': (1, 3, "unknown key; did you mean fault"),
    "fault = []\n": (1, 9, "[] is not a list of tables"),
    FAULT * 1001: (1, 1, "1,001 faults; the most is 1,000"),
    "\0": (1, 1, "not TOML: invalid statement"),
    "": (1, 1, "no fault is in it; each is a table under [[fault]]"),
    "\r\n": (1, 1, "no fault is in it"),
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: repr(text[:60]))
def test_a_mistake_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    line, column, said = MISTAKES[text]
    path = tmp_path / "faults.toml"
    path.write_bytes(text.encode())
    with pytest.raises(InputError) as raised:
        read_faults(path)
    message = str(raised.value)
    assert message.startswith(f"{path}:{line}:{column}: ")
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"# \n" * 400_000, ": has more than 1048576 bytes, the most that is read of it"),
        (b"\xff\xfe", ":1:1: not UTF-8 text at byte 0; save it as UTF-8"),
        (b"PK\x03\x04" + bytes(40), ": not faults in TOML, but a ZIP archive; --inputs takes one"),
    ],
)
def test_what_is_no_text_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        read_faults(path)
    assert str(raised.value).startswith(f"{path}{said}")


def test_a_mark_of_byte_order_and_other_ends_of_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_bytes(b"\xef\xbb\xbf" + FAULT.replace("\n", "\r\n").encode())
    assert [str(fault) for fault in read_faults(path)] == ["rank 3 dead"]


def test_damaged_files_are_refused_in_one_message_or_read(tmp_path: Path) -> None:
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
        with contextlib.suppress(InputError):  # as it may still be right
            read_faults(path)
            continue
        with pytest.raises(InputError) as raised:
            read_faults(path)
        assert str(raised.value).startswith(f"{path}:")
        assert "\n" not in str(raised.value)
