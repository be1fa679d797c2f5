"""Listings with one word changed: what is said of them."""

import pytest

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.listing import parse_program


def changed(text: str, old: str, new: str) -> str:
    """The text with the first `old` replaced, which is there."""
    assert old in text
    return text.replace(old, new, 1)


def assert_breach(text: str, rule: str, complaint: str) -> None:
    """Its program breaks a rule, and the complaint says so."""
    found = check(parse_program(text))
    assert any(one.startswith(f"{rule} ") and complaint in one for one in found), found


def assert_refused(text: str, message: str) -> None:
    """It is no listing; the message begins so."""
    with pytest.raises(NeffError) as error:
        parse_program(text)
    assert str(error.value).startswith(message)
