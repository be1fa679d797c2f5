"""Faults as text: `at 120us: link c0-c1 down for 50us`.

The grammar says what is understood. One form of each is printed (`str(fault)`) and reads back as
the same fault; others, such as a time behind what happens, are read.
"""

import difflib
import functools
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import FULL_SPEED
from ncc_runtime.faults.fault import ASSUMED, MOST_PS, Fault, Kind, When
from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.topology.format.rows import core_of_name, ends_of_name

if TYPE_CHECKING:
    import lark

MOST_LETTERS = 1_000
"""Of a text; the longest fault takes some hundred."""

MOST_COUNT = 10**12
"""Numbers of runs, transfers, elements, bytes and bits are below."""

NAME = r"[A-Za-z_%$][^\s,:()]*"
"""Of links, cores, collectives and queues."""

GRAMMAR = r"""
start: [prefix ":"] what span*
prefix: "at" TIME -> at | "at" "run" COUNT "of" NAME -> at_run
span: "at" TIME -> at | "at" "run" COUNT "of" NAME -> at_run
    | "for" TIME -> lasting | "from" TIME -> at | "until" TIME -> until
what: "rank" RANKS "slow" slowness -> rank_slow
    | "rank" RANKS "dead" -> rank_dead
    | "rank" RANKS "late" "by" draws -> rank_late
    | "core" NAME "slow" slowness -> core_slow
    | "core" NAME "dead" -> core_dead
    | "chip" NAME "dead" -> chip_dead
    | "link" NAME state -> link
    | "adapter" (NAME | RANKS) state -> adapter
    | "adapter" (NAME | RANKS) "loses" PERCENT -> adapter_loses
    | "instance" NAME "has" "mtu" COUNT -> instance_mtu
    | "ring" NAME "on" "rank" COUNT "stuck" -> dma_stuck
    | "completion" COUNT "of" NAME "on" "rank" COUNT fate -> completion
    | "bit" COUNT "of" "transfer" COUNT "of" NAME "on" "rank" COUNT "flips" -> bit_transfer
    | "bit" COUNT "of" "element" COUNT "of" NAME "on" "rank" COUNT "flips" -> bit_memory
    | "bit" COUNT "of" "byte" COUNT "on" "rank" COUNT "flips" -> bit_byte
state: "down" -> down
    | "slow" "to" (PERCENT | RATE) -> slow_to
    | "flaps" TIME "of" "every" TIME -> flaps
slowness: "to" PERCENT -> slow_to | "by" draws -> slow_by | "by" PERCENT -> slow_by_percent
fate: "lost" -> lost | "doubled" -> doubled | "late" "by" draws -> late_by
draws: (NUMBER | TIME | COUNT) -> number
    | LAW "(" (NUMBER | TIME | COUNT) ["," (NUMBER | TIME | COUNT)] ")" -> law

TIME.4: /[0-9]+(\.[0-9]+)?\s?(ps|ns|us|ms|s)\b/
PERCENT.4: /[0-9]+(\.[0-9]+)?\s?%/
RATE.4: /[0-9]+(\.[0-9]+)?\s?[MGT]B\/s/
RANKS.3: /\*|[0-9]+-[0-9]+|[0-9]+(?![\w.])/
COUNT.2: /[0-9]+(?![\w.%])/
NUMBER.1: /[0-9]+(\.[0-9]+)?(?![\w.%])/
LAW.3: /(uniform|exponential|normal|lognormal|pareto)\b/
%ignore /\s+/
"""
GRAMMAR += f"NAME: /{NAME}/\n"

_WORDS = {
    "TIME": "a time such as 50us",
    "PERCENT": "a percentage such as 50%",
    "RATE": "a rate such as 64GB/s",
    "RANKS": "ranks such as 3, 0-7 or *",
    "COUNT": "a whole number",
    "NUMBER": "a number such as 1.5",
    "LAW": "a distribution such as lognormal(1, 0.3)",
    "NAME": "a name as outputs print it",
    "COLON": "a colon",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "$END": "the end",
}
"""Terminals of the grammar in messages; the others are words that stand for themselves."""

_EXAMPLE = "as in --fault 'at 120us: link c0-c1 down for 50us'; all forms: docs/faults.md"


def parse(text: str, source: str = ASSUMED) -> Fault:
    """A fault; InputError with the column, what was expected there and the nearest word."""
    import lark  # slow to import, and only faults need it

    if len(text) > MOST_LETTERS:
        raise InputError(f"a fault has at most {MOST_LETTERS} letters, not {len(text)}")
    line = " ".join(text.split())
    try:
        tree = _parser().parse(line)
    except lark.exceptions.UnexpectedInput as error:
        raise _refusal(line, error) from None
    try:
        return attrs.evolve(_fault(tree), source=source)
    except _WrongError as error:
        raise InputError(f"fault {line!r}: {error}") from None


class _WrongError(Exception):
    """What is wrong with a number or a name."""


@functools.cache
def _parser() -> "lark.Lark":
    import lark

    return lark.Lark(GRAMMAR, parser="lalr", lexer="contextual", maybe_placeholders=False)


def _refusal(line: str, error: "lark.exceptions.UnexpectedInput") -> InputError:
    """Where the text stops to be a fault, and what could stand there."""
    import lark

    at = error.pos_in_stream or 0
    if isinstance(error, lark.exceptions.UnexpectedToken) and error.token.type == "$END":
        at = len(line)
    found = line[at:].split(" ")[0]
    names = getattr(error, "accepts", None) or getattr(error, "expected", None)
    names = names or getattr(error, "allowed", None) or ()
    literals = {each.name: each.pattern.value for each in _parser().terminals}
    expected = sorted(_WORDS.get(name, literals.get(name, name.lower())) for name in names)
    near = difflib.get_close_matches(found, expected, n=1, cutoff=0.7)
    hint = f"; did you mean {near[0]}?" if near else f", {_EXAMPLE}"
    what = f"{found!r}" if found else "the end"
    ones = " or ".join([", ".join(expected[:-1]), expected[-1]] if expected[1:] else expected)
    return InputError(f"{line!r} is no fault: column {at + 1}, at {what}: expected {ones}{hint}")


def _fault(tree: "lark.Tree[lark.Token]") -> Fault:
    words: dict[str, Any] = {}
    when: dict[str, Any] = {}
    for each in tree.children:
        rule = str(getattr(each, "data", ""))
        if rule in _READERS:
            words = _READERS[rule](each)
            continue
        given = _when(each)  # type: ignore[arg-type]
        if given.keys() & when.keys() or {"at_ps", "run"} <= {*given, *when}:
            raise _WrongError(f"it says twice {'how long' if 'for_ps' in given else 'when'}")
        when |= given
    until_ps = when.pop("until_ps", None)
    if until_ps is not None:
        if "run" in when or "for_ps" in when:
            raise _WrongError("until goes with a time to begin at; say how long with for")
        when["for_ps"] = until_ps - when.get("at_ps", 0)
        if when["for_ps"] <= 0:
            raise _WrongError("it ends before it begins")
    fault = Fault(when=When(**when), **words)
    is_told = fault.nth is not None or fault.kind is Kind.RANK_LATE
    if is_told and fault.when != When():
        raise _WrongError("it has no time; which transfer, or how late, says when")
    if fault.kind is Kind.BIT_MEMORY and fault.when.for_ps is not None:
        raise _WrongError("a bit that flips has no duration")
    return fault


def _when(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    first = str(tree.children[0])
    if tree.data == "at_run":
        run = _count(first)
        if run == 0:
            raise _WrongError("runs count from 1")
        return {"run": run, "collective": str(tree.children[1])}
    if tree.data == "at":
        return {"at_ps": _time(first)}
    key = "for_ps" if tree.data == "lasting" else "until_ps"
    time_ps = _time(first)
    if time_ps == 0:
        raise _WrongError("it lasts no time")
    return {key: time_ps}


def _time(text: str) -> int:
    """Picoseconds of `1.5us`."""
    number = text.rstrip("pnums ")
    factors = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
    ps = Fraction(number) * factors[text[len(number) :].strip()]
    if ps.denominator != 1:
        raise _WrongError(f"{text} is no whole number of picoseconds")
    if ps > MOST_PS:
        raise _WrongError(f"{text} is more than {MOST_PS // 10**12:,} s")
    return int(ps)


def _count(text: str) -> int:
    if len(text) > 12 or int(text) >= MOST_COUNT:
        raise _WrongError(f"{text} is too large a number")
    return int(text)


def _share(text: str) -> float:
    return float(Decimal(text.rstrip("% ")) / 100)


def _speed(text: str) -> int:
    """Ten-thousandths of the usual speed."""
    speed = Fraction(text.rstrip("% ")) * FULL_SPEED / 100
    if not 1 <= speed <= FULL_SPEED or speed.denominator != 1:
        raise _WrongError(
            f"{text} is no speed: from 0.01% to 100%, at most two digits behind the point"
        )
    return int(speed)


def _draws(tree: "lark.Tree[lark.Token]", *, is_time: bool) -> Draws | float:
    """A distribution, or a number."""
    if tree.data == "number":
        return _quantity(str(tree.children[0]), is_time=is_time)
    law, *words = map(str, tree.children)
    law_ = Law(law)
    if len(words) == 1 and law_ is Law.EXPONENTIAL:
        words = ["0s" if is_time else "1", *words]
    if len(words) != 2:
        count = "one number, or two" if law_ is Law.EXPONENTIAL else "two numbers"
        raise _WrongError(f"{law} has {count}")
    is_second_time = is_time and law_ not in (Law.LOGNORMAL, Law.PARETO)
    first = _quantity(words[0], is_time=is_time)
    second = _quantity(words[1], is_time=is_second_time)
    if law_ is Law.UNIFORM and second < first:
        raise _WrongError("uniform has the least number first")
    if law_ is Law.PARETO and second <= 1:
        raise _WrongError("a pareto exponent of 1 or less has no mean; give more than 1")
    if law_ in (Law.LOGNORMAL, Law.PARETO) and first <= 0:
        raise _WrongError(f"{law} begins above 0")
    return Draws(law_, first, second, 0.0 if is_time else 1.0)


def _quantity(text: str, *, is_time: bool) -> float:
    is_given_as_time = text.endswith("s")
    if is_given_as_time != is_time:
        raise _WrongError(
            f"{text} is {'no time such as 20us' if is_time else 'no number such as 1.5'}"
        )
    value = float(_time(text)) if is_time else float(text)
    if not math.isfinite(value) or value > MOST_PS:
        raise _WrongError(f"{text} is too large")
    return value


def _slowness(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    if tree.data == "slow_to":
        return {"speed": _speed(str(tree.children[0]))}
    if tree.data == "slow_by_percent":
        percent = str(tree.children[0])
        raise _WrongError(f"say slow to {percent} of its speed, or slow by 2: twice as long")
    drawn = _draws(tree.children[0], is_time=False)  # type: ignore[arg-type]
    if isinstance(drawn, Draws):
        return {"draws": drawn}
    if not 1 <= drawn <= FULL_SPEED:
        raise _WrongError(f"slow by {drawn:g}: it takes so many times as long, 1 to {FULL_SPEED}")
    return {"speed": max(1, round(FULL_SPEED / drawn))}


def _late(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    drawn = _draws(tree, is_time=True)
    return {"draws": drawn} if isinstance(drawn, Draws) else {"amount": int(drawn)}


def _ranks(text: str) -> str:
    """Ranks in one spelling."""
    if text == "*":
        return text
    first, _, last = text.partition("-")
    low, high = _count(first), _count(last or first)
    if low > high:
        raise _WrongError(f"no ranks {text}; the first comes first")
    return f"{low}-{high}" if low < high else str(low)


def _of_ranks(kind: Kind) -> Any:
    def read(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
        words: dict[str, Any] = {"kind": kind, "place": _ranks(str(tree.children[0]))}
        if kind is Kind.RANK_SLOW:
            words |= _slowness(tree.children[1])  # type: ignore[arg-type]
        elif kind is Kind.RANK_LATE:
            words |= _late(tree.children[1])  # type: ignore[arg-type]
        return words

    return read


def _of_core(kind: Kind) -> Any:
    def read(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
        name = str(tree.children[0])
        if core_of_name(name) is None:
            raise _WrongError(f"{name} is no core, as c5.core0 is")
        more = _slowness(tree.children[1]) if kind is Kind.CORE_SLOW else {}  # type: ignore[arg-type]
        return {"kind": kind, "place": name, **more}

    return read


def _chip(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    name = str(tree.children[0])
    if not (name[0] == "c" and name[1:].isdecimal() and name.isascii() and len(name) < 11):
        raise _WrongError(f"{name} is no chip, as c5 is")
    return {"kind": Kind.CHIP_DEAD, "place": f"c{int(name[1:])}"}


def _link(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    name = str(tree.children[0])
    if ends_of_name(name) is None:
        raise _WrongError(f"{name} is no link, as c0-c1, c0>c1 and c0.E are")
    return {"place": name, **_state("link", tree.children[1])}


def _adapter(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    return {"place": _adapter_name(tree), **_state("adapter", tree.children[1])}


def _adapter_name(tree: "lark.Tree[lark.Token]") -> str:
    name = str(tree.children[0])
    node, dot, adapter = name.partition(".efa")
    is_name = dot and node[:1] == "n" and node[1:].isdecimal() and adapter.isdecimal()
    if name != "*" and not (is_name and name.isascii() and len(name) < 24):
        raise _WrongError(f"{name} is no adapter, as n0.efa3 and * are")
    return name


def _state(subject: str, tree: Any) -> dict[str, Any]:
    """Down, slow or flapping."""
    words = [str(each) for each in tree.children]
    if tree.data == "down":
        return {"kind": Kind(f"{subject}.down")}
    if tree.data == "flaps":
        down, every = _time(words[0]), _time(words[1])
        if not 0 < down < every:
            raise _WrongError("of every period it is down for a part, more than none")
        return {"kind": Kind(f"{subject}.flaps"), "flap_ps": (down, every)}
    kind = Kind(f"{subject}.slow")
    if words[0].endswith("%"):
        return {"kind": kind, "speed": _speed(words[0])}
    factor = {"M": 10**6, "G": 10**9, "T": 10**12}[words[0][-4]]
    rate = int(Fraction(words[0][:-4].strip()) * factor)
    if not 10**6 <= rate <= 10**15:
        raise _WrongError(f"{words[0]} is no rate from 1MB/s to 1,000TB/s; down lets nothing pass")
    return {"kind": kind, "amount": rate}


def _loses(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    loss = _share(str(tree.children[1]))
    if not 0 < loss <= 0.5:
        raise _WrongError("a share of packets is above 0% and at most 50%")
    return {"kind": Kind.ADAPTER_LOSES, "place": _adapter_name(tree), "loss": loss}


def _mtu(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    name, mtu = str(tree.children[0]), _count(str(tree.children[1]))
    if not (name[0] == "n" and name[1:].isdecimal() and name.isascii() and len(name) < 9):
        raise _WrongError(f"{name} is no instance, as n1 is")
    if not 256 <= mtu <= 65_536:
        raise _WrongError(f"an MTU has 256 to 65,536 bytes, not {mtu}")
    return {"kind": Kind.INSTANCE_MTU, "place": f"n{int(name[1:])}", "amount": mtu}


def _ring(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    name, rank = map(str, tree.children)
    return {"kind": Kind.DMA_STUCK, "place": name, "rank": _count(rank)}


def _completion(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
    nth, name, rank = map(str, tree.children[:3])
    fate: Any = tree.children[3]
    words: dict[str, Any] = {"place": name, "rank": _count(rank), "nth": _count(nth)}
    if fate.data == "late_by":
        return {"kind": Kind.DMA_LATE, **words, **_late(fate.children[0])}
    return {"kind": Kind(f"dma.{fate.data}"), **words}


def _bit(kind: Kind, key: str) -> Any:
    def read(tree: "lark.Tree[lark.Token]") -> dict[str, Any]:
        bit, number, *name, rank = map(str, tree.children)
        numbers = {"bit": _count(bit), key: _count(number), "rank": _count(rank)}
        return {"kind": kind, "place": "".join(name), **numbers}

    return read


_READERS: Mapping[str, Any] = {
    "rank_slow": _of_ranks(Kind.RANK_SLOW),
    "rank_dead": _of_ranks(Kind.RANK_DEAD),
    "rank_late": _of_ranks(Kind.RANK_LATE),
    "core_slow": _of_core(Kind.CORE_SLOW),
    "core_dead": _of_core(Kind.CORE_DEAD),
    "chip_dead": _chip,
    "link": _link,
    "adapter": _adapter,
    "adapter_loses": _loses,
    "instance_mtu": _mtu,
    "dma_stuck": _ring,
    "completion": _completion,
    "bit_transfer": _bit(Kind.BIT_TRANSFER, "nth"),
    "bit_memory": _bit(Kind.BIT_MEMORY, "element"),
    "bit_byte": _bit(Kind.BIT_MEMORY, "byte"),
}
