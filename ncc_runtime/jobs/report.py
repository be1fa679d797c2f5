"""What a job reports: its steps, its timeline, where the time went, what its recoveries changed."""

from collections.abc import Iterator
from typing import Any

from ncc_runtime.jobs.job import JobRecovery, JobResult
from ncc_runtime.report.text_table import text_table

_LOST_FIRST = ("detection", "restart", "lost work", "checkpoints")


def as_json(result: JobResult) -> dict[str, Any]:
    """The key `job` of `nccrt run --steps --json`; times of steps in microseconds, else seconds."""
    has_times = result.has_clock and bool(result.step_us)
    return {
        "steps": result.steps,
        "first_step": result.first_step,
        "stopped": result.stopped,
        "step_us": {
            "first": result.step_us[0],
            "median": result.median_us,
            "total": sum(result.step_us),
        }
        if has_times
        else None,
        "total_s": result.total_s if result.has_clock else None,
        "useful_s": result.useful_s if result.has_clock else None,
        "goodput": result.useful_s / result.total_s if has_times else None,
        "lost_s": {name.replace(" ", "_"): value for name, value in result.lost_s.items()}
        if result.has_clock
        else None,
        "checkpoints": result.checkpoints,
        "checkpoint_bytes": result.checkpoint_bytes,
        "batch_rows": {f"arg{number}": rows for number, rows in result.rows.items()},
        "same_bits": all(recovery.is_same_arithmetic for recovery in result.recoveries),
        "recoveries": [_recovery(recovery) for recovery in result.recoveries],
        "timeline": [
            {"at_s": event.at_s, "seconds": event.seconds, "kind": event.kind, "text": event.text}
            for event in result.events
        ],
    }


def _recovery(recovery: JobRecovery) -> dict[str, Any]:
    return {
        "fault": str(recovery.fault),
        "how": recovery.how,
        "what": recovery.what,
        "resumed_step": recovery.resumed_step,
        "lost_steps": recovery.lost_steps,
        "lost_work_s": recovery.lost_s,
        "same_arithmetic": recovery.is_same_arithmetic,
        "changed": [{"name": each.name, "change": each.change} for each in recovery.changed],
        "refused": list(recovery.refused),
    }


def as_text(result: JobResult) -> str:
    """The lines that stand behind the summary of the last step."""
    lines = [*_lines(result)]
    if result.has_clock and result.events:
        events = [(f"{one.at_s:.6f}", f"{one.seconds:.6f}", one.text) for one in result.events]
        lines += ["job", *text_table(("from s", "seconds", "what"), events, words=(2,))]
    for recovery in result.recoveries:
        lines += _recovery_lines(recovery)
    return "\n".join(lines)


def _lines(result: JobResult) -> Iterator[str]:
    done = len(result.step_us)
    last = result.first_step + done - 1
    if not done:
        yield f"all {result.steps} steps were done before: nothing was run, no outputs are written"
        return
    went_on = " from the checkpoint" if result.first_step else ""
    yield f"steps {result.first_step} to {last}{went_on}, outputs fed back to inputs"
    for number, rows in result.rows.items():
        if rows < result.steps:
            yield f"batches of arg{number} begin again after {rows} steps"
    if result.has_clock:
        yield (
            f"step time: first {result.step_us[0]:.3f} us, median {result.median_us:.3f} us, "
            f"{done} steps {result.useful_s * 1e6:.3f} us"
        )
    if result.checkpoints:
        times = f"{result.checkpoints} checkpoint{'s' * (result.checkpoints > 1)}"
        yield f"{times} of {result.checkpoint_bytes:,} bytes over all ranks"
    if result.has_clock and any(result.lost_s.values()):
        lost = ", ".join(f"{name} {result.lost_s[name]:.6f} s" for name in _LOST_FIRST)
        share = f"{100 * result.useful_s / result.total_s:.3f}%"
        yield f"job time {result.total_s:.6f} s, of which steps that count {share}; lost: {lost}"


def _recovery_lines(recovery: JobRecovery) -> Iterator[str]:
    yield f"{recovery.fault}: {recovery.how}; {recovery.what}"
    for reason in recovery.refused:
        yield f"  tried before: {reason}"
    if recovery.is_same_arithmetic:
        yield "  the arithmetic from there on is that of an undisturbed run: equal bits"
        return
    yield "  the arithmetic is another one than without faults, bits may differ:"
    for each in recovery.changed[:8]:
        yield f"    {each.name}: {each.change}"
    if len(recovery.changed) > 8:
        yield f"    and {len(recovery.changed) - 8} more collectives"
