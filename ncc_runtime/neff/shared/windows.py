"""Windows that slide over dimensions, and which dimension is which in a convolution.

One reader, one spelling and one count of positions for convolution, reduce-window and
select-and-scatter.
"""

import re
from collections.abc import Callable, Sequence

import attrs


@attrs.frozen
class WindowDimension:
    """How a window slides along one dimension; negative padding drops elements."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1  # lhs_dilate: distance of neighbours in the array
    window_dilation: int = 1  # rhs_dilate: distance of neighbours in the window
    is_reversed: bool = False

    @property
    def reach(self) -> int:
        """Elements from the first of the window to the last, the dilated gaps included."""
        return (self.size - 1) * self.window_dilation + 1

    def positions(self, length: int) -> int:
        """How many positions the window has along `length` elements."""
        dilated = (length - 1) * self.base_dilation + 1 if length else 0
        padded = dilated + self.low + self.high
        room = padded - self.reach
        return room // self.stride + 1 if room >= 0 and padded > 0 else 0


@attrs.frozen
class Window:
    """`window={size=3x2 pad=1_1x0_0}`: one entry for each dimension it slides along."""

    dimensions: tuple[WindowDimension, ...] = ()

    def positions(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many positions the window has along each dimension."""
        return tuple(
            dimension.positions(length)
            for dimension, length in zip(self.dimensions, shape, strict=True)
        )

    def __str__(self) -> str:
        fields = []
        for name, spell in _SPELLINGS.items() if self.dimensions else ():
            entries = list(map(spell, self.dimensions))
            default = spell(WindowDimension(1))
            if name == "size" or any(entry != default for entry in entries):
                fields.append(f"{name}={'x'.join(entries)}")
        return "{" + " ".join(fields) + "}"


_SPELLINGS: dict[str, Callable[[WindowDimension], str]] = {
    "size": lambda dimension: str(dimension.size),
    "stride": lambda dimension: str(dimension.stride),
    "pad": lambda dimension: f"{dimension.low}_{dimension.high}",
    "lhs_dilate": lambda dimension: str(dimension.base_dilation),
    "rhs_dilate": lambda dimension: str(dimension.window_dilation),
    "rhs_reversal": lambda dimension: str(int(dimension.is_reversed)),
}
"""The fields of a window in XLA's order; all but `size` are left out at their defaults."""

_NUMBER = r"-?[0-9]{1,9}"
_ENTRIES = {"pad": rf"{_NUMBER}_{_NUMBER}", "rhs_reversal": "[01]"}
_EXAMPLES = {"pad": "0_1x-1_0", "rhs_reversal": "1x0"}
_FIELD = re.compile(r"(\w+)=([-\w]+)\s*")
_WINDOW = re.compile(rf"\{{\s*((?:{_FIELD.pattern})*)\}}")


def read_window(text: str) -> Window:
    """The window that a text spells; ValueError says what is wrong with it."""
    match = _WINDOW.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not of the form {{size=2x2 pad=0_1x0_1}}")
    fields: dict[str, list[str]] = {}
    for name, value in _FIELD.findall(match[1]):
        if name not in _SPELLINGS or name in fields:
            what = "given twice" if name in fields else f"none of {', '.join(_SPELLINGS)}"
            raise ValueError(f"{name} is {what}")
        fields[name] = value.split("x")
        for entry in fields[name]:
            if not re.fullmatch(_ENTRIES.get(name, _NUMBER), entry):
                form = _EXAMPLES.get(name, "2x2")
                raise ValueError(f"{name}={value[:40]} is not of the form {form}")
    count = len(fields.get("size", ()))
    for name, entries in fields.items():
        if len(entries) != count:
            raise ValueError(f"{name} has {len(entries)} entries, size has {count}")
    return Window(tuple(_dimension(fields, k) for k in range(count)))


def _dimension(fields: dict[str, list[str]], position: int) -> WindowDimension:
    entry = {name: entries[position] for name, entries in fields.items()}
    low, high = map(int, entry.get("pad", "0_0").split("_"))
    return WindowDimension(
        int(entry["size"]),
        int(entry.get("stride", 1)),
        low,
        high,
        int(entry.get("lhs_dilate", 1)),
        int(entry.get("rhs_dilate", 1)),
        entry.get("rhs_reversal") == "1",
    )


@attrs.frozen
class ConvolutionLabels:
    """`dim_labels=b01f_01io->b01f`: what each dimension of input, kernel and result is."""

    input: str
    kernel: str
    result: str

    @property
    def spatial(self) -> int:
        """How many spatial dimensions there are."""
        return len(self.input) - 2

    @property
    def input_dimensions(self) -> tuple[int, ...]:
        """Where batch, features and the spatial dimensions are."""
        return self._places(self.input, "bf")

    @property
    def kernel_dimensions(self) -> tuple[int, ...]:
        """Where input features, output features and the spatial dimensions are."""
        return self._places(self.kernel, "io")

    @property
    def result_dimensions(self) -> tuple[int, ...]:
        """Where batch, features and the spatial dimensions are."""
        return self._places(self.result, "bf")

    def _places(self, labels: str, named: str) -> tuple[int, ...]:
        return tuple(labels.index(label) for label in (*named, *map(str, range(self.spatial))))

    def __str__(self) -> str:
        return f"{self.input}_{self.kernel}->{self.result}"


_LABELS = re.compile(r"([bf0-9]+)_([io0-9]+)->([bf0-9]+)")


def read_labels(text: str) -> ConvolutionLabels:
    """The labels that a text spells; ValueError says what is wrong with them."""
    match = _LABELS.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not of the form b01f_01io->b01f")
    spatial = "".join(map(str, range(len(match[1]) - 2)))
    for labels, named in zip(match.groups(), ("bf", "io", "bf"), strict=True):
        if sorted(labels) != sorted(named + spatial):
            raise ValueError(f"{labels} does not hold each of {', '.join(named + spatial)} once")
    return ConvolutionLabels(*match.groups())
