"""Collectives of a proved program that values take from their normal forms, all rows at once."""

from collections.abc import Mapping

import attrs

from ncc_runtime.bits.normal_forms import normal_forms
from ncc_runtime.execution.scheduler import AtOnce, all_at_once
from ncc_runtime.execution.trace import Traffic, traffic_at_once
from ncc_runtime.execution.values.normal_form import NormalForm
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.prove import Evidence


@attrs.frozen(eq=False)
class PureCollective:
    """A collective as a function: what it computes, where its rows are, and what they move."""

    form: NormalForm
    at_once: AtOnce
    traffic: Traffic


def pure_collectives(
    executable: Executable, evidence: Evidence | None = None
) -> Mapping[int, PureCollective]:
    """By placeholder; presumes that the executable is proved, with this evidence if at hand."""
    forms = normal_forms(executable, evidence)
    traffic = traffic_at_once(executable, forms)
    at_once = all_at_once(executable, {number: form.groups for number, form in forms.items()})
    return {
        number: PureCollective(forms[number], one, traffic[number])
        for number, one in at_once.items()
    }
