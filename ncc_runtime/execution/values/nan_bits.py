"""Results whose NaNs may be any: nobody sees which NaN it is.

Every NaN that is computed is made canonical, for the bits of one depend on numpy's loops. To look
for NaNs takes a pass over a result. Where all that reads it is arithmetic, whose own NaNs are
canonical in the end, that is not needed: a NaN gives a NaN, whatever its bits.
"""

from collections.abc import Mapping, Set

from ncc_runtime.execution.values.kernels.blockwise import fusion_of, observed_values
from ncc_runtime.execution.values.normal_form import NormalForm
from ncc_runtime.execution.values.tape_values import TapeValues
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction

_SUMS = (Reduction.ADD, Reduction.AVERAGE, Reduction.MULTIPLY)
_KINDS = (DType.F32, DType.F64)


def results_of_any_nan(values: TapeValues) -> Mapping[object, Set[int]]:
    """By queue and row, which results, by position, may hold any NaN where they hold one."""
    program = values.program
    seen = {*values.outputs, *values.predicates.values()}
    seen.update(source for sources in values.met.values() for source in sources)
    for row in values.rows:
        seen.update(row.rest)
        if row.form is not None:
            if not _sums(row.form):
                seen.update(row.operands)
            continue
        assert row.instr is not None, "an instruction"
        fusion = fusion_of(program, row.instr)
        if fusion is None:
            seen.update(row.operands)
        else:
            observed = observed_values(program, fusion)
            seen.update(value for k, value in enumerate(row.operands) if k in observed)
    found = {}
    for row in values.rows:
        if row.instr is not None:
            dtypes = [program.tensors[tensor].dtype for tensor in row.instr.results]
            found[row.key] = {
                k
                for k, (value, dtype) in enumerate(zip(row.results, dtypes, strict=True))
                if value not in seen and dtype in _KINDS
            }
    return found


def _sums(form: NormalForm) -> bool:
    """Whether each piece of a collective is a sum or product of operands, and none a copy."""
    return form.reduction in _SUMS and all(one.steps for one in form.classes)
