"""What the commands of `nccrt` share: placement options, sizes, lists of ranks, loading."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from ncc_runtime.command_line import check_written
from ncc_runtime.commands import completion
from ncc_runtime.errors import InputError, LoweringError, PlacementError, TopologyError, reason_of
from ncc_runtime.host_limits import processors
from ncc_runtime.options import Policy, plans_apart
from ncc_runtime.words import algorithms_of, programs_of, ranks_of, size_of, split_choice

if TYPE_CHECKING:
    from ncc_runtime.faults.fault import Fault
    from ncc_runtime.neff.program import Program
    from ncc_runtime.placement import Placement, PlaceOptions
    from ncc_runtime.report.rates import PerStep
    from ncc_runtime.runtime import Model
    from ncc_runtime.topology.fault_names import NamedFault


Text = TypeVar("Text")
Value = TypeVar("Value")


@attrs.frozen
class PlaceWords:
    """The placement options of a command line."""

    on: str | None
    words: Mapping[str, Any]  # fields of PlaceOptions that were given
    algorithms: Mapping[str, str]
    strict: bool
    plans: Sequence[str] = ()
    ignore_memory: bool = False
    policy: Policy = Policy.NEURON
    deterministic: bool = False


def size(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """`64`, `4KB`, `1MB`, `2GB`, powers of 1024 as nccom-test counts; `KiB` says the same."""
    return None if text is None else _read(size_of, text)


def _read(reader: Callable[[Text], Value], text: Text) -> Value:
    """What a reader of words makes of one; what it refuses is wrong usage."""
    try:
        return reader(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


def json_word(_: click.Context, parameter: click.Parameter, word: str | None) -> object:
    """A JSON text, or the value in the file of that name."""
    if word is None:
        return None
    from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file

    is_text = word.lstrip()[:1] in ("[", "{")
    source = parameter.opts[0] if is_text else word
    try:
        return json_of(word if is_text else read_file(word, MOST_JSON_BYTES))
    except OSError as error:
        raise InputError(f"{source}: {reason_of(error)}") from error
    except ValueError as error:
        raise InputError(f"{source}: not JSON: {str(error).lower()}") from error


def trip_counts(_: click.Context, __: click.Parameter, pairs: Sequence[str]) -> dict[str, int]:
    counts = {}
    for pair in pairs:
        name, equals, number = pair.rpartition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise click.BadParameter(f"{pair!r} is not NAME=N, as in while.10=4")
        counts[name] = int(number)
    return counts


algorithm_option = click.option(
    "--algorithm",
    "algorithms",
    metavar="OP=NAME",
    multiple=True,
    callback=lambda _, __, pairs: _read(algorithms_of, pairs),
    shell_complete=completion.algorithm,
    help="Force an algorithm for an operator, or a plan: all-reduce=plan:FILE; once for each.",
)

plan_option = click.option(
    "--plan",
    "plans",
    metavar="[OP=]FILE",
    multiple=True,
    help="A plan of your own, MSCCL XML or JSON, for what it fits; OP, pN or a name says for what.",
)

strict_option = click.option(
    "--strict", is_flag=True, help="Refuse groups that the hardware would refuse."
)


ignore_memory_option = click.option(
    "--ignore-memory",
    is_flag=True,
    help="Place a program that takes more memory than a rank has too; it gives times, no values.",
)


def _faults(
    _: click.Context, parameter: click.Parameter, words: Sequence[str]
) -> "tuple[NamedFault, ...]":
    if not words:
        return ()
    from ncc_runtime.topology import fault_names

    read = fault_names.down if parameter.name == "down" else fault_names.slow
    try:
        return tuple(read(word) for word in words)
    except TopologyError as error:
        raise click.UsageError(str(error)) from error


policy_option = click.option(
    "--policy",
    metavar="|".join(Policy),
    type=click.Choice([policy.value for policy in Policy]),
    help="Which algorithms may be chosen: those published of Neuron's runtime, or all "
    f"[{Policy.NEURON}].",
)


deterministic_option = click.option(
    "--deterministic",
    is_flag=True,
    help="Reduce in one order everywhere: the same bits on any place, by any policy.",
)


@attrs.frozen
class ChoiceWords:
    """What may be chosen, and the rest of `--on`, which says where."""

    on: str | None
    policy: Policy
    deterministic: bool
    algorithms: Mapping[str, str]


def choice_of(
    on: str | None,
    policy: str | None,
    deterministic: bool,
    algorithms: Mapping[str, str],
) -> ChoiceWords:
    """The options, with what `--on` says: `policy=best`, `algorithm=OP=NAME`, `deterministic`."""
    try:
        said = split_choice(on)
        policies = [*([policy] if policy else []), *said.policies]
        if len(policies) > 1:
            raise click.UsageError(f"the policy is given twice: {policies[1]} and {policies[0]}")
        chosen = Policy(policies[0]) if policies else Policy.NEURON
    except InputError as error:
        raise click.UsageError(f"--on: {error}") from error
    again = sorted({*said.algorithms} & {*algorithms})
    if again:
        raise click.UsageError(f"--on and --algorithm both name one for {again[0]}")
    named = {**algorithms, **said.algorithms}
    return ChoiceWords(said.where, chosen, deterministic or said.deterministic, named)


lnc_option = click.option(
    "--lnc",
    metavar="1|2",
    type=click.IntRange(1, 2),
    help="Physical cores a rank has [as usual for the instance type].",
)

down_option = click.option(
    "--down",
    metavar="LINK",
    multiple=True,
    callback=_faults,
    help="A link that is down: c0-c1, one way c0>c1 or c0.E; once for each.",
)

slow_option = click.option(
    "--slow",
    metavar="NAME=RATE",
    multiple=True,
    callback=_faults,
    help="A link or physical core that is slow: c0-c1=50%, c0.E=64GB/s, c5.core0=50%.",
)


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def place_options(
    command: Callable[..., None], algorithm: Decorator = algorithm_option
) -> Callable[..., None]:
    """The options that say where to place, the same on every command, passed on as `place`.

    A command that reads the option `--algorithm` in its own way gives it, and gets its value.
    """

    @click.option(
        "--topology",
        metavar="T",
        shell_complete=completion.topology,
        help="Instance type, alias or TOML file [trn2].",
    )
    @click.option(
        "--nodes", metavar="N", type=click.IntRange(1), help="Instances [as many as needed]."
    )
    @click.option(
        "--placement",
        metavar="linear|spread|FILE.json",
        shell_complete=completion.placement,
        help="Ranks to cores: consecutive ones, a rank per chip first, or as a file says [linear].",
    )
    @lnc_option
    @click.option(
        "--on",
        metavar="SPEC",
        shell_complete=completion.place,
        help="In one word: trn2.48xlarge,nodes=2,lnc=1; policy=best, algorithm=OP=NAME and "
        "deterministic also belong here.",
    )
    @down_option
    @slow_option
    @algorithm
    @policy_option
    @deterministic_option
    @plan_option
    @strict_option
    @ignore_memory_option
    @functools.wraps(command)
    def collecting(on: str | None, **rest: Any) -> None:
        words = {name: rest.pop(name) for name in ("topology", "nodes", "placement", "lnc")}
        given = {name: word for name, word in words.items() if word is not None}
        if faults := (*rest.pop("down"), *rest.pop("slow")):
            given["faults"] = faults
        forced = rest.pop("algorithms", {})
        choice = choice_of(on, rest.pop("policy"), rest.pop("deterministic"), forced)
        algorithms, plans = plans_apart(choice.algorithms, rest.pop("plans"))
        strict, ignore_memory = rest.pop("strict"), rest.pop("ignore_memory")
        place = PlaceWords(
            choice.on,
            given,
            algorithms,
            strict,
            plans,
            ignore_memory,
            choice.policy,
            choice.deterministic,
        )
        command(place=place, **rest)

    return collecting


def place_of(place: PlaceWords) -> "PlaceOptions":
    """The placement options as an object; unknown words are wrong usage."""
    from ncc_runtime.placement import PlaceOptions, parse_on

    words = dict(place.words)
    faults = words.pop("faults", ())
    if place.on is not None and words:
        raise click.UsageError(f"--on and --{', --'.join(words)} say the same thing")
    try:
        if place.algorithms:  # whether one suits a group is only seen later
            from ncc_runtime.collectives.choose import check_forced

            check_forced(place.algorithms)
    except LoweringError as error:
        raise click.UsageError(str(error)) from error
    try:
        where = PlaceOptions(**words) if place.on is None else parse_on(place.on)
        where = attrs.evolve(where, faults=(*where.faults, *faults))
    except (PlacementError, TopologyError) as error:
        raise click.UsageError(str(error)) from error
    known_placement(where.placement)
    return where


def fault_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say what goes wrong during a run, passed on as `faults`, a list or empty."""

    @click.option(
        "--fault",
        "fault_texts",
        metavar="TEXT",
        multiple=True,
        help="What goes wrong during the run: 'at 120us: link c0-c1 down for 50us'; once for each, "
        "docs/faults.md has all forms.",
    )
    @click.option(
        "--faults", "fault_file", metavar="FILE.toml", type=click.Path(), help="The same as a file."
    )
    @functools.wraps(command)
    def collecting(
        *positional: Any, fault_texts: Sequence[str], fault_file: str | None, **rest: Any
    ) -> None:
        faults: list[Fault] = []
        if fault_texts or fault_file is not None:
            from ncc_runtime.faults.files import read_faults
            from ncc_runtime.faults.text import parse

            try:
                faults += map(parse, fault_texts)
            except InputError as error:
                raise click.UsageError(f"--fault: {error}") from error
            faults += () if fault_file is None else read_faults(fault_file)
        command(*positional, faults=faults, **rest)

    return collecting


memory_option = click.option(
    "--memory",
    metavar="BYTES",
    callback=size,
    help="Host memory it may take [80 % of what is free].",
)


def _per_step(words: str | None) -> "PerStep | None":
    if words is None:
        return None
    from ncc_runtime.report.rates import PerStep

    try:
        return PerStep.parse(words)
    except InputError as error:
        raise click.BadParameter(str(error)) from error


per_step_option = click.option(
    *("--per-step", "--tokens", "per_step"),
    metavar="'N tokens'",
    callback=lambda _, __, words: _per_step(words),
    help="What all ranks together do in one run: '8192 tokens', '32 sequences', '4 steps', or any "
    "noun; a number alone is of tokens. Prints how many a second.",
)

threads_option = click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1),
    default=processors,
    show_default="all processors",
    help="Of this host, for values; the results are the same on any number.",
)

exec_timeout_option = click.option(
    "--exec-timeout",
    metavar="SECONDS",
    type=float,
    help="After how long hosts give up a run that stalls [NEURON_RT_EXEC_TIMEOUT, or 30].",
)


def known_placement(word: str) -> None:
    """Wrong usage if a placement is neither a strategy nor a file that exists."""
    from ncc_runtime.placement import check_is_known

    try:
        check_is_known(word)
    except PlacementError as error:
        raise click.UsageError(str(error)) from error


def _programs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> Sequence[str]:
    """One file, or several that each name their ranks."""
    _read(programs_of, given)
    return given


program_argument = click.argument(
    "program",
    metavar="PROGRAM",
    type=click.Path(),  # which shells complete
    nargs=-1,
    required=True,
    callback=_programs,
)
"""MODEL.neff, or several programs with their ranks: a.neff@0-3 b.neff@4-7."""


def trace_file(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """A file that a timeline can go to."""
    if path is not None:
        from ncc_runtime.report.timeline.write import SUFFIXES

        if not path.endswith(SUFFIXES):
            raise click.BadParameter(f"{path!r} does not end in {', '.join(SUFFIXES)}")
    return path


def plot_option(help_text: str) -> Decorator:
    """A picture of what the command computes, which the help text says."""
    return click.option(
        "--plot", metavar="F.svg|F.png", type=click.Path(), callback=_plot_file, help=help_text
    )


def _plot_file(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    if path is not None and not path.endswith((".svg", ".png")):
        raise click.BadParameter(f"{path!r} does not end in .svg or .png")
    return path


def rank_list(_: click.Context, __: click.Parameter, text: str | None) -> list[int] | None:
    """Ranks such as 0-3,8."""
    return None if text is None else _read(ranks_of, text)


def program_of_words(given: Sequence[str]) -> "Program":
    """The program of a file, or of several files that each name their ranks."""
    from ncc_runtime.runtime import program_of

    parts = programs_of(given)
    if parts[0].ranks is None:
        return program_of(parts[0].path)
    return program_of([(part.path, part.ranks or ()) for part in parts])


def loaded(program: Sequence[str], place: PlaceWords, *, times_only: bool = False) -> "Model":
    """A program's file, or several, placed and filled."""
    where = place_of(place)
    return filled(program_of_words(program), place, where, times_only=times_only)


def filled_on(program: "Program", placement: "Placement", place: PlaceWords) -> "Model":
    """A program filled on a placement that is known, by the other options."""
    return filled(program, place, placement)


def filled(
    program: "Program",
    place: PlaceWords,
    where: "PlaceOptions | Placement",
    *,
    times_only: bool = False,
) -> "Model":
    """A program, placed and filled."""
    from ncc_runtime.options import LoadOptions
    from ncc_runtime.runtime import load_on

    options = LoadOptions(
        place.algorithms,
        place.strict,
        place.plans,
        place.ignore_memory,
        times_only,
        place.policy,
        place.deterministic,
    )
    return load_on(program, where, options)


def check_outputs_of(
    written: Mapping[str, str | None], place: PlaceWords, read: Iterable[str] = ()
) -> None:
    """Wrong usage if options name a file to write that the command reads, or one twice."""
    where = place_of(place)
    plans = [plan.partition("=")[2] or plan for plan in place.plans]
    check_written(written, [*read, where.topology, where.placement, *plans, *place.plans])


def files_of(program: Sequence[str]) -> list[str]:
    """The files of programs, without the ranks that words may name."""
    return [part.path for part in programs_of(program)]
