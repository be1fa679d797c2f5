"""A sweep from words to rows: what is not in the file of results is computed, each point once."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from ncc_runtime.progress import phase
from ncc_runtime.sweep.models import (
    Compilation,
    CompiledModel,
    compilation_of,
    compiled,
    samples_of,
)
from ncc_runtime.sweep.points import PointReader, SweepPoint, WordError, version
from ncc_runtime.sweep.report import SweepRow, default_task
from ncc_runtime.sweep.results import PointResult, Status
from ncc_runtime.sweep.store import ResultFile
from ncc_runtime.sweep.sweep_file import PointWords
from ncc_runtime.sweep.workers import Workers, computed


@attrs.frozen
class SweptPoint:
    """A point that has been read; or a refusal, where a model does not compile."""

    words: PointWords
    point: SweepPoint | None
    samples: int | None = None
    program: tuple[str, ...] = ()  # of a model: what it was compiled to
    refusal: PointResult | None = None

    @property
    def key(self) -> str:
        if self.point is not None:
            return self.point.key
        assert self.refusal is not None, self.words
        return self.refusal.key

    @property
    def task(self) -> str:
        return str(self.words.words.get("task", default_task(self.words.words, self.point)))


class Sweep:
    """Distinct points, in their order, and the programs that they take.

    What is computed once may be a point of several tasks, or of runs of so many samples.
    """

    def __init__(self, points: Sequence[SweptPoint], programs: Mapping[str, bytes]) -> None:
        last_first = {(p.key, p.task, p.samples): p for p in reversed(points)}
        self.points = list(last_first.values())[::-1]
        self._programs = programs

    def compute(
        self, file: ResultFile, workers: Workers, timeout_s: float | None, *, again: bool = False
    ) -> None:
        """Compute what the file has no result of, and append it; `again` also what has no time.

        May be stopped at any moment: what has been computed is in the file.
        """
        by_key = {point.key: point for point in self.points}
        words = {key: point.words.shown for key, point in by_key.items()}
        refusals = [point.refusal for point in self.points if point.refusal is not None]
        if new := [each for each in refusals if file.results.get(each.key) != each]:
            file.add(new, words)
        left = [
            point.point
            for key, point in by_key.items()
            if point.point is not None and _is_left(file.results.get(key), again=again)
        ]
        if not left:
            return
        with (
            phase("sweep", "points", len(left)) as now,
            workers.pool(self._programs, timeout_s) as pool,
        ):
            for results in computed(left, pool):
                file.add(results, words)
                now.done += len(results)

    def rows(self, results: Mapping[str, PointResult]) -> Iterator[SweepRow]:
        """A row for each point that has a result."""
        for point in self.points:
            if point.key in results:
                yield SweepRow(
                    point.words.shown,
                    point.point,
                    results[point.key],
                    point.task,
                    point.samples,
                    point.program,
                )


def _is_left(result: PointResult | None, *, again: bool) -> bool:
    return result is None or (again and result.status is not Status.DONE)


def read(
    points: Sequence[PointWords],
    error_of: Callable[[PointWords, WordError], Exception],
    folder: Path,
    processes: int,
) -> Sweep:
    """The points of words; `error_of` makes of a word that cannot be read what is raised.

    Models are compiled first, by so many processes, into the folder.
    """
    reader, found = PointReader(), []
    models: dict[Compilation, None] = {}
    for words in points:
        try:
            if "model" in words.words:
                models[compilation_of(words.words)] = None
        except WordError as error:
            raise error_of(words, error) from error
    programs = compiled(list(models), folder, processes) if models else {}
    for words in points:
        try:
            found.append(_point(words, reader, programs))
        except WordError as error:
            raise error_of(words, error) from error
    return Sweep(found, reader.programs)


def _point(
    words: PointWords, reader: PointReader, programs: Mapping[Compilation, CompiledModel]
) -> SweptPoint:
    samples, said = samples_of(words.words), dict(words.words)
    if "model" not in said:
        return SweptPoint(words, reader.point(said), samples)
    model = compilation_of(said)
    program = programs[model]
    if program.refusal:
        text = json.dumps([version(), model.arguments, words.shown], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        refusal = PointResult(key, Status.REFUSED, program.refusal)
        return SweptPoint(words, None, samples, refusal=refusal)
    del said["model"]
    point = reader.point({**said, "program": program.program})
    return SweptPoint(words, point, samples, program.program)
