"""Points of a sweep: what is computed, of which everything is said by value, and its key.

A point is read from words, those of the command line, in the process that has the files. What it
then holds needs no file and no environment, so that any process computes the same of it; programs
alone are kept apart, by hash, since many points share one. Its key is a hash of all that. Spellings
that mean the same (an alias, a default that is written out, faults in another order) have one key.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ncc_runtime.collectives.choose import check_forced
from ncc_runtime.errors import InputError, NccError, PlacementError, TopologyError, reason_of
from ncc_runtime.faults.files import read_faults
from ncc_runtime.faults.text import parse
from ncc_runtime.input_files import MOST_NEFF_BYTES, read_file
from ncc_runtime.neff import container
from ncc_runtime.options import LoadOptions, Policy, plans_apart
from ncc_runtime.placement import PlaceFiles, PlaceOptions, parse_on, place_on, read_place_files
from ncc_runtime.plans.files import plan_data, plan_file, split_word
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, type_name
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.fault_names import NamedFault
from ncc_runtime.topology.format.load import load_spec, spec_of
from ncc_runtime.topology.format.rows import core_of_name, ends_of_name
from ncc_runtime.topology.graph import build_spec
from ncc_runtime.words import algorithms_of, programs_of, size_of, split_choice


def version() -> str:
    """What results depend on beside a point: the version, and a hash of this package's files."""
    return f"{_release()}+{package_digest('ncc_runtime')}"


@functools.cache
def _release() -> str:
    return importlib.metadata.version("neuron-ncc")


@functools.cache
def package_digest(name: str) -> str:
    """A hash of the sources and tables of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    digest = hashlib.sha256()
    for folder in spec.submodule_search_locations or ():
        for file in sorted(Path(folder).rglob("*")):
            if file.suffix in (".py", ".toml", ".lark"):
                whole = hashlib.sha256(file.read_bytes()).digest()
                digest.update(f"{file.relative_to(folder)}\0".encode() + whole)
    return digest.hexdigest()[:16]


@attrs.frozen
class Bench:
    """One collective, as `nccrt bench` times it."""

    op: str
    ranks: int
    dtype: str
    size_bytes: int

    @property
    def case(self) -> Case:
        return Case(OPERATORS[self.op], self.ranks, DTYPES[self.dtype], self.size_bytes)


@attrs.frozen
class SweptPart:
    """A program of a point: the hash of its `.neff`, and the ranks that run it."""

    label: str = attrs.field(eq=False)
    sha256: str
    ranks: tuple[int, ...] | None  # None: all


@attrs.frozen
class SweptProgram:
    """A program, or several that run together, timed without values."""

    parts: tuple[SweptPart, ...]
    ranks: int
    trip_counts: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class PlanText:
    """A user's plan, and what it is meant for."""

    path: str = attrs.field(eq=False)
    target: str | None
    data: bytes = attrs.field(repr=False)


@attrs.frozen
class SweepPoint:
    """What is computed, where, by which choice, under which faults."""

    work: Bench | SweptProgram
    place: PlaceOptions  # nodes and lnc are numbers, unless the ranks do not fit there
    files: PlaceFiles = attrs.field(factory=PlaceFiles)  # that the place names
    options: LoadOptions = attrs.field(factory=LoadOptions)
    plans: tuple[PlanText, ...] = ()
    faults: tuple[str, ...] = ()  # during the run
    fault_seed: int = 0
    key: str = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        said = json.dumps([version(), self._content()], sort_keys=True)
        object.__setattr__(self, "key", hashlib.sha256(said.encode()).hexdigest())

    @property
    def ranks(self) -> int:
        return self.work.ranks

    @property
    def hashes(self) -> tuple[str, ...]:
        """Of the programs that it takes."""
        return () if isinstance(self.work, Bench) else tuple(p.sha256 for p in self.work.parts)

    def _content(self) -> dict[str, Any]:
        """All that its result depends on, in one spelling."""
        work, place, options = self.work, self.place, self.options
        topology: Any = place.topology
        if self.files.topology is not None:
            topology = {"text": self.files.topology.text}
        return {
            "work": attrs.asdict(work, filter=lambda attribute, _: attribute.name != "label"),
            "topology": topology,
            "nodes": place.nodes,
            "lnc": place.lnc,
            "placement": place.placement if self.files.placement is None else self.files.placement,
            "damage": [[f.name, f.percent, f.bandwidth_bytes_per_s] for f in place.faults],
            "algorithms": dict(options.algorithms),
            "plans": [[p.target, hashlib.sha256(p.data).hexdigest()] for p in self.plans],
            "policy": options.policy,
            "deterministic": options.deterministic,
            "strict": options.strict,
            "ignore_memory": options.ignore_memory,
            "faults": self.faults,
            "fault_seed": self.fault_seed,
        }


class WordError(InputError):
    """A word of a point that cannot be read, and its key."""

    def __init__(self, key: str, reason: object) -> None:
        super().__init__(str(reason))
        self.key = key


@contextlib.contextmanager
def _of(key: str) -> Iterator[None]:
    """What is refused inside is refused of a key."""
    try:
        yield
    except WordError:
        raise
    except NccError as error:
        raise WordError(key, error) from error


class PointReader:
    """Reads points from words; what they share, above all files, is read once.

    A model must have been compiled: then `program` has its programs.
    `programs` has the bytes of the `.neff` files by hash.
    """

    def __init__(self) -> None:
        self.programs: dict[str, bytes] = {}
        self._neff = functools.cache(self._read_neff)
        self._place = functools.cache(_canonical_place)
        self._fault = functools.cache(lambda text: str(parse(text)))
        self._faults_of_file = functools.cache(
            lambda path: tuple(str(fault) for fault in read_faults(path))
        )
        self._plan = functools.cache(_plan_text)

    def point(self, words: Mapping[str, Any]) -> SweepPoint:
        """The point of words by their keys, as in a sweep's file; WordError.

        Keys that may have several words have a list of them.
        """
        work = self._work(words)
        where, options, plans = self._choice(words, work)
        place, files = self._place_of(words, where, work.ranks)
        with _of("fault"):
            faults = tuple(map(self._fault, words.get("fault", ())))
        if "faults" in words:
            with _of("faults"):
                faults += self._faults_of_file(words["faults"])
        seed = words.get("fault_seed", 0) if faults else 0
        return SweepPoint(work, place, files, options, plans, faults, seed)

    def _work(self, words: Mapping[str, Any]) -> Bench | SweptProgram:
        kinds = [key for key in ("op", "program", "model") if key in words]
        if len(kinds) != 1:
            said = " and ".join(kinds) or "none of them"
            reason = f"give one of op, program, model, not {said}"
            raise WordError(kinds[-1] if kinds else "", reason)
        if "op" in words:
            return _bench(words)
        if "program" not in words:
            raise WordError("model", "the model has not been compiled")
        with _of("program"):
            given = words["program"]
            if isinstance(given, str):
                given = given.split() if "@" in given else [given]
            named = programs_of(given)
            found = [self._neff(part.path) for part in named]
        parts = tuple(
            SweptPart(part.path, digest, part.ranks)
            for part, (digest, _) in zip(named, found, strict=True)
        )
        # what else the parts must agree on is seen when they are joined
        ranks = max(ranks for _, ranks in found)
        return SweptProgram(parts, ranks, tuple(sorted(words.get("trip_counts", {}).items())))

    def _read_neff(self, path: str) -> tuple[str, int]:
        """The hash of a `.neff` that is intact, and its ranks."""
        try:
            data = read_file(path, MOST_NEFF_BYTES)
        except OSError as error:
            raise InputError(f"{path}: {reason_of(error)}") from error
        ranks = container.unpack(data, path).ranks
        digest = hashlib.sha256(data).hexdigest()
        self.programs[digest] = data
        return digest, ranks

    def _choice(
        self, words: Mapping[str, Any], work: Bench | SweptProgram
    ) -> tuple[str | None, LoadOptions, tuple[PlanText, ...]]:
        """The rest of `on`, which says where; what may be chosen, and plans of the user's."""
        with _of("on"):
            said = split_choice(words.get("on"))
        if said.policies and ("policy" in words or len(said.policies) > 1):
            raise WordError("policy" if "policy" in words else "on", "the policy is given twice")
        with _of("policy"):
            policy = Policy(words.get("policy", (*said.policies, Policy.NEURON)[0]))
        with _of("algorithm"):
            op = OPERATORS[work.op].op.value if isinstance(work, Bench) else None
            own = algorithms_of([_pair(word, op) for word in words.get("algorithm", ())])
            if both := own.keys() & said.algorithms.keys():
                raise InputError(f"on and algorithm both name one for {min(both)}")
            chosen = {**said.algorithms, **own}
            if op is not None:  # what other operators would take changes nothing
                chosen = {key: name for key, name in chosen.items() if key == op}
            algorithms, plans = plans_apart(chosen, words.get("plan", ()))
            check_forced(algorithms)
        options = LoadOptions(
            algorithms=dict(sorted(algorithms.items())),
            strict=words.get("strict", False),
            ignore_memory=words.get("ignore_memory", False),
            policy=policy,
            deterministic=said.deterministic or words.get("deterministic", False),
        )
        with _of("plan"):
            return said.where, options, tuple(map(self._plan, plans))

    def _place_of(
        self, words: Mapping[str, Any], where: str | None, ranks: int
    ) -> tuple[PlaceOptions, PlaceFiles]:
        keys = ("topology", "nodes", "placement", "lnc")
        own = {key: words[key] for key in keys if key in words}
        if where is not None and own:
            raise WordError("on", f"on and {', '.join(own)} say the same thing")
        with _of("on"):
            options = PlaceOptions(**own) if where is None else parse_on(where)
        damage = list(options.faults)
        for key, read in (("down", fault_names.down), ("slow", fault_names.slow)):
            with _of(key):
                damage += map(read, words.get(key, ()))
        options = attrs.evolve(options, faults=_canonical_damage(damage))
        try:
            return self._place(options, ranks)
        except PlacementError as error:
            raise WordError("on" if where is not None else "placement", error) from error
        except TopologyError as error:
            raise WordError("on" if where is not None else "topology", error) from error


def _bench(words: Mapping[str, Any]) -> Bench:
    if words["op"] not in OPERATORS:
        raise WordError("op", f"no operator {words['op']!r}; there are {', '.join(OPERATORS)}")
    for key in ("ranks", "size"):
        if key not in words:
            raise WordError("op", f"{key} is missing, which {words['op']} needs")
    if words["ranks"] < 2:
        raise WordError("ranks", f"{words['op']} is of at least 2 ranks")
    dtype = words.get("dtype", "fp32")
    if dtype not in DTYPES:
        raise WordError("dtype", f"no type {dtype!r}; there are {', '.join(DTYPES)}")
    size = words["size"]
    with _of("size"):
        size_bytes = size_of(size) if isinstance(size, str) else size
        if not size_bytes:
            raise InputError("a size of no bytes")
    operator = OPERATORS[words["op"]]
    return Bench(operator.name, words["ranks"], type_name(DTYPES[dtype]), size_bytes)


def _pair(word: str, op: str | None) -> str:
    """An algorithm as OP=NAME; of a bench the operator goes without saying."""
    head, equals, name = word.partition("=")
    if op is None or (equals and not head.startswith("plan:")):
        operator = OPERATORS.get(head)
        return f"{operator.op.value}={name}" if operator is not None and equals else word
    return f"{op}={word}"


def _canonical_damage(damage: Sequence[NamedFault]) -> tuple[NamedFault, ...]:
    """Each once, in one order, with one name: `c1-c0` is `c0-c1`."""
    found = {}
    for fault in damage:
        ends = None if core_of_name(fault.name) else ends_of_name(fault.name)
        name = fault.name
        if ends is not None and len(ends.ends) == 2 and ends.port is None:
            name = "-".join(sorted(name.split("-")))
        found[name, fault.percent, fault.bandwidth_bytes_per_s] = attrs.evolve(fault, name=name)
    return tuple(found[key] for key in sorted(found, key=repr))


def _canonical_place(options: PlaceOptions, ranks: int) -> tuple[PlaceOptions, PlaceFiles]:
    """Aliases and defaults written out, and the files that are named."""
    files = read_place_files(options)
    named = files.topology
    spec = load_spec(options.topology) if named is None else spec_of(named)
    options = attrs.evolve(options, topology=options.topology if named else spec.name)
    with contextlib.suppress(NccError):  # a point that does not fit is refused when it is computed
        whole = attrs.evolve(options, faults=())
        topology = place_on(whole, ranks, files).topology
        return attrs.evolve(options, nodes=topology.nodes, lnc=topology.lnc), files
    with contextlib.suppress(NccError):
        options = attrs.evolve(options, lnc=build_spec(spec, lnc=options.lnc).lnc)
    return options, files


def _plan_text(word: str) -> PlanText:
    target, path = split_word(word)
    data = plan_data(path)
    plan_file(path, target, data)
    return PlanText(path, target, data)
