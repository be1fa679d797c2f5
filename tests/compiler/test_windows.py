"""Windows and convolution labels: read, printed, and how many positions a window has."""

import pytest
from hypothesis import given

from ncc_runtime.neff.shared.windows import (
    ConvolutionLabels,
    Window,
    WindowDimension,
    read_labels,
    read_window,
)
from tests.compiler.reading import load, messages, node
from tests.draws_windows import labels, window_dimensions, windows


@given(windows)
def test_a_printed_window_reads_back_as_itself(window: Window) -> None:
    assert read_window(str(window)) == window


@given(labels())
def test_printed_labels_read_back_as_themselves(found: ConvolutionLabels) -> None:
    assert read_labels(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{size=3}",
        "{size=3x1 stride=2x1}",
        "{size=3x1 pad=1_0x-1_2}",
        "{size=2x2 stride=1x2 pad=0_0x1_1 lhs_dilate=2x1 rhs_dilate=1x3 rhs_reversal=1x0}",
    ],
)
def test_a_window_is_printed_as_xla_prints_it(text: str) -> None:
    assert str(read_window(text)) == text


def test_fields_that_say_nothing_are_not_printed() -> None:
    assert str(read_window("{size=2 stride=1 pad=0_0 rhs_reversal=0}")) == "{size=2}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("2x2", "is not of the form {size=2x2 pad=0_1x0_1}"),
        ("{size=2,stride=1}", "is not of the form"),
        ("{stride=2}", "stride has 1 entries, size has 0"),
        ("{size=2x2 pad=0_0}", "pad has 1 entries, size has 2"),
        ("{size=2 size=2}", "size is given twice"),
        ("{size=2 strides=2}", "strides is none of size, stride, pad"),
        ("{size=2 pad=1}", "pad=1 is not of the form 0_1x-1_0"),
        ("{size=two}", "size=two is not of the form 2x2"),
        ("{size=2 rhs_reversal=2}", "rhs_reversal=2 is not of the form 1x0"),
    ],
)
def test_what_is_wrong_with_a_window_is_said(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_window(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bf01", "is not of the form b01f_01io->b01f"),
        ("b01f_01io->b01", "b01 does not hold each of b, f, 0, 1 once"),
        ("b0f_0ii->b0f", "0ii does not hold each of i, o, 0 once"),
        ("b1f_1io->b1f", "b1f does not hold each of b, f, 0 once"),
    ],
)
def test_what_is_wrong_with_labels_is_said(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_labels(text)


def test_labels_say_where_the_dimensions_are() -> None:
    found = read_labels("f1b0_io01->01bf")
    assert found.input_dimensions == (2, 0, 3, 1)
    assert found.kernel_dimensions == (0, 1, 2, 3)
    assert found.result_dimensions == (2, 3, 0, 1)


@given(window_dimensions.filter(lambda one: one.size > 0))
def test_a_position_is_one_at_which_the_window_fits(one: WindowDimension) -> None:
    for length in range(6):
        room = ((length - 1) * one.base_dilation + 1 if length else 0) + one.low + one.high
        starts = range(0, max(0, room), one.stride)
        fitting = [start for start in starts if start + one.reach <= room]
        assert one.positions(length) == len(fitting)


CONVOLUTION = """x = f32[1,8,8,4] parameter(0)
k = f32[3,3,4,6] parameter(1)
ROOT r = f32[1,4,4,6] convolution(x, k), window={%s}, dim_labels=b01f_01io->b01f
"""


def test_an_op_holds_its_window_as_data() -> None:
    module = load(CONVOLUTION % "size=3x3 stride=2x2 pad=1_1x1_1")
    window = node(module, "r").attributes["window"]
    assert window == Window((WindowDimension(3, 2, 1, 1),) * 2)


def test_a_wrong_window_is_an_attribute_of_the_wrong_form() -> None:
    assert "error[attribute-C1]: window: pad has 1 entries, size has 2" in messages(
        CONVOLUTION % "size=3x3 pad=1_1"
    )
