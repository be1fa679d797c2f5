"""Errors and warnings of the runtime: each message is one line with place and remedy."""

import re

import attrs

_LONG_WORD = re.compile(r"(?<!\S)(\S{120})(\S{241,})(\S{40})")
_LONG_LINE = re.compile(r"^([^\n]{3000})([^\n]{601,})([^\n]{400})", re.MULTILINE)


def shortened(message: str) -> str:
    """A message without the middle of very long words and lines.

    Both commands print every message through this, so that errors may quote any name or value.
    """
    for pattern in (_LONG_WORD, _LONG_LINE):
        message = pattern.sub(
            lambda match: f"{match[1]}…({len(match[2])} more)…{match[3]}", message
        )
    return message


def reason_of(error: OSError) -> str:
    """Why the system refused a file, in the words of our messages."""
    reason = (error.strerror or str(error)).lower()
    advice = "; give the name of a file" if isinstance(error, IsADirectoryError) else ""
    return f"{reason}{advice}"


@attrs.frozen
class Notice:
    """A warning: its code, one line, and the section of the documents that says more."""

    code: str
    message: str
    see: str  #: a file and an anchor of docs/

    def __str__(self) -> str:
        return f"{self.message} [{self.code}, {self.see}]"


class NccError(Exception):
    """Any refusal with a reason the user can act on; exit code 1."""


class NeffError(NccError):
    """A `.neff` file is not one, is damaged, is from another version, or breaks a rule."""


class TopologyError(NccError):
    """A topology is unknown or contradicts itself."""


class PlacementError(NccError):
    """The ranks cannot be placed on the topology with these options."""


class LoweringError(NccError):
    """A placeholder cannot be filled on this placement."""


class PlanError(NccError):
    """A file is no plan, fits no collective, or its plan has wrong results."""


class InputError(NccError):
    """An input array is missing, has the wrong shape or dtype, or does not fit in memory."""


class ControlError(NccError):
    """A predicate that guards a collective differs in its group, or is unknown without values."""


class StallError(NccError):
    """A run in which faults happen does not come to its end."""


class CountsError(NccError):
    """Counts of a variable-size collective fit no buffer, or contradict those of another rank."""


class DeadlockError(NccError):
    """Queues wait for semaphore values, or room in a ring, that nothing will ever provide."""


class ProofError(NccError):
    """A placed program has a deadlock, a race or another fault; the message has the witness."""


class MismatchError(NccError):
    """Programs that run together disagree about a collective that they share."""


class MemoryFaultError(NccError):
    """Checked mode: an access outside a buffer, or a read of what was never written."""
