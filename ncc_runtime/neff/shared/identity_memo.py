"""What was computed of frozen objects, kept for as long as they live."""

import weakref
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class IdentityMemo(Generic[K, V]):
    """Values by objects that dictionaries do not take as keys, or compare at length.

    A value must not refer to its key, which would then live for ever.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[K], V]] = {}

    def get(self, key: K) -> V | None:
        """The value that was set for this very object."""
        entry = self._values.get(id(key))
        return None if entry is None else entry[1]

    def set(self, key: K, value: V) -> None:
        """Keep a value until the key is gone."""
        number, values = id(key), self._values
        values[number] = weakref.ref(key, lambda _: values.pop(number, None)), value
