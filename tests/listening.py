"""A listener to progress that keeps what it hears."""

import attrs

from ncc_runtime.progress import Phase


@attrs.frozen
class Heard:
    """Phases under way, and those that are over."""

    now: list[Phase] = attrs.field(factory=list)
    over: list[Phase] = attrs.field(factory=list)

    def began(self, phase: Phase) -> None:
        self.now.append(phase)

    def ended(self, phase: Phase) -> None:
        self.now.remove(phase)
        self.over.append(phase)

    def tasks(self) -> set[str]:
        return {phase.task for phase in self.over}
