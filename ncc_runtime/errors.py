"""What the runtime raises: one class a cause, each message one line with place and remedy."""


def reason_of(error: OSError) -> str:
    """Why the system refused a file, in the words of our messages."""
    reason = (error.strerror or str(error)).lower()
    advice = "; give the name of a file" if isinstance(error, IsADirectoryError) else ""
    return f"{reason}{advice}"


class NccError(Exception):
    """Any refusal with a reason the user can act on; exit code 1."""


class NeffError(NccError):
    """A `.neff` file is not one, is damaged, is from another version, or breaks a rule."""


class TopologyError(NccError):
    """A topology is unknown or contradicts itself."""


class PlacementError(NccError):
    """The ranks cannot be placed on the topology as asked."""


class LoweringError(NccError):
    """A placeholder cannot be filled on this placement."""


class PlanError(NccError):
    """A plan from a file is none, fits no collective, or does not do what it says."""


class InputError(NccError):
    """An input array is missing, has the wrong shape or dtype, or does not fit in memory."""


class ControlError(NccError):
    """A predicate that guards a collective differs in its group, or nothing says where it goes."""


class CountsError(NccError):
    """Tables of a counted collective say what fits no buffer, or not what those of others say."""


class DeadlockError(NccError):
    """Queues wait for semaphore values, or room in a ring, that nothing will ever provide."""


class ProofError(NccError):
    """A placed program has a deadlock, a race or another fault; the message has the witness."""


class MismatchError(NccError):
    """Programs that run together disagree about a collective that they share."""


class MemoryFaultError(NccError):
    """Checked mode: an access outside a buffer, or a read of what was never written."""
