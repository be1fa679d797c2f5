"""Sets of sends in which nobody sends or receives twice: what one transfer of a plan can hold."""

from collections.abc import Iterable

import attrs


@attrs.frozen
class Send:
    """One role writes to another what a role on its chip, or all of its chip, has to give."""

    sender: int
    receiver: int
    chip: int  # of the sender, as a number of the form


def matchings(sends: Iterable[Send]) -> list[list[Send]]:
    """Each send in the first set that has neither its sender nor its receiver yet."""
    found: list[list[Send]] = []
    sending: dict[int, int] = {}  # bits: the sets a role sends in
    receiving: dict[int, int] = {}
    for send in sends:
        taken = sending.get(send.sender, 0) | receiving.get(send.receiver, 0)
        free = (~taken & (taken + 1)).bit_length() - 1
        if free == len(found):
            found.append([])
        found[free].append(send)
        sending[send.sender] = sending.get(send.sender, 0) | 1 << free
        receiving[send.receiver] = receiving.get(send.receiver, 0) | 1 << free
    return found
