"""Places in the user's code, as reports and refusals shorten them."""

from pathlib import Path

import pytest

from ncc_runtime.neff.memory import EqualBuffers
from ncc_runtime.neff.program import short_place
from ncc_runtime.report.row_texts import lines_text

FAR = "/home/somebody/projects/large/training/model.py:12"


@pytest.mark.parametrize(
    ("place", "short"),
    [
        ("model.py:12", "model.py:12"),
        (FAR, "…/training/model.py:12"),
        (f"/venv/lib/python3.11/site-packages/{FAR}", "…/training/model.py:12"),
        ("/usr/lib/python3/dist-packages/flax/linear.py:7", "flax/linear.py:7"),
    ],
)
def test_long_places_lose_their_folders(place: str, short: str) -> None:
    assert short_place(place) == short


def test_places_below_the_working_directory_are_shown_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_place(f"{tmp_path}/model.py:12") == "model.py:12"
    assert short_place(f"{tmp_path}/layers/norm.py:3") == "layers/norm.py:3"
    assert lines_text([f"{tmp_path}/model.py:12", FAR]) == "model.py:12 and 1 more"


def test_what_does_not_fit_is_named_by_a_short_place() -> None:
    buffers = EqualBuffers("temporaries", "sum.1", FAR, 1, 1 << 30)
    assert buffers.text == "temporary sum.1 (…/training/model.py:12) of 1.0 GiB"
