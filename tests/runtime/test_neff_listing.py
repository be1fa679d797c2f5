"""The listing of a program: text that people read and the parser gives back unchanged."""

from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import Program
from tests.draws_neff import programs
from tests.example_count import examples
from tests.wrong_listings import assert_refused, changed

LISTING = Path(__file__).parents[1] / "data" / "neff" / "step.listing"


@given(program=programs())
@settings(max_examples=examples(100))
def test_a_listing_parses_back_to_its_program(program: Program) -> None:
    assert parse_program(print_program(program)) == program


def test_a_canonical_listing_prints_unchanged() -> None:
    text = LISTING.read_text()
    assert print_program(parse_program(text)) == text


def test_comments_blanks_and_alignment_carry_no_meaning() -> None:
    text = LISTING.read_text()
    loose = "\n".join(line.split(";")[0].replace("  ", " ") for line in text.split("\n"))
    assert parse_program(loose) == parse_program(text)


def test_constants_can_be_left_out_for_people() -> None:
    program = parse_program(LISTING.read_text())
    short = print_program(program, constants=False)
    assert parse_program(short) == attrs.evolve(program, constants={})
    assert "4 bytes, not listed" in short


def test_names_may_hold_anything() -> None:
    program = attrs.evolve(parse_program(LISTING.read_text()), name='a "b"; ; # \n ü \u2028')
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program step", "model step", "line 1: 'program' expected, found 'model'"),
        ("replicas 1", "replicas 0", "line 1: 'replica_count' must be >= 1"),
        ("buffers", "bufers", "line 3: section 'bufers', known: buffers, tensors"),
        ("b1  input", "b2  input", "line 5: 'b1' expected, found 'b2'"),
        ("b1  input", "b1  inptu", "line 5: 'inptu' is no buffer kind, known: input, output"),
        ("0x00000040", "64", "line 5: address expected, found '64'"),
        ("f32[4,4]", "f31[4,4]", "line 17: 'f31' is not a valid DType"),
        ("t2   f32[]  ", "t2   f32  ", "line 18: type expected, found 'f32'"),
        ("b2+0  00000000", "b2+1  00000000", "line 35: b2+1 after 0 bytes"),
        ("b2+0  00000000", "b2+0  0000000", "line 35: bytes in hex expected"),
        ("vector   Vector", "tensor   Vector", "line 39: two semaphores are called 'tensor'"),
        ("region=0", "region=x", "line 45: attribute=value expected, found 'region=x'"),
        ("v0, v1", "v0, v1 twice", "line 50: attribute=value expected, found 'twice'"),
        ("{{0,1},{2,3}} stream", "{{0,1},{2,3} stream", "line 53: {{0,1},{2,3}} expected"),
        ("queue Tensor", "queue Tenser", "line 62: 'Tenser' is no engine"),
        ("wait vector>=1", "wait victor>=1", "line 77: no semaphore is called 'victor'"),
        ("written 32", "written 32 33", "line 63: '33' is one word too many"),
        ('"stream 0"', '"stream 0', "line 40: a quote is not closed"),
        ("0  wait  wait", "1  wait  wait", "line 77: '0' expected, found '1'"),
        ("flops 64", f"flops {2**63}", "queue Tensor: "),
    ],
)
def test_a_wrong_listing_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert_refused(changed(LISTING.read_text(), old, new), message)


def test_an_empty_listing_is_refused() -> None:
    with pytest.raises(NeffError, match="line 1: a listing starts with 'program'"):
        parse_program("\n ; nothing\n")


@given(data=st.data())
@settings(max_examples=examples(300))
def test_a_damaged_listing_is_a_program_or_one_line_of_refusal(data: st.DataObject) -> None:
    text = LISTING.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    damaged = text[:start] + data.draw(st.text(max_size=6)) + text[end:]
    message = ""
    try:
        parse_program(damaged)
    except NeffError as error:
        message = str(error)
    assert message.startswith(("line ", "queue ")) or not message
    assert "\n" not in message
