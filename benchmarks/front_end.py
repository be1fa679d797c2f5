"""Lines a second of reading a module: ours to a verified graph and to a program, beside peers.

One module is generated, a chain of element-wise ops, products and collectives with the metadata
that XLA prints; files may be given as well. Each reader runs in a process of its own, after its
imports, and reports its least time and peak memory: a plain lark grammar of the same language,
jaxlib's C++ parser (if the extra `jax` is installed), our parser, our verified graph, our whole
compiler by default and with -O2.

Run: python benchmarks/front_end.py [MODEL.hlo ...] [--ops 20000] [--repeats 5]
"""

import argparse
import functools
import importlib.util
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROWS, COLUMNS = 8, 128
ARRAY, FLAT, SQUARE = (
    f"f32[{ROWS},{COLUMNS}]",
    f"f32[{ROWS * COLUMNS}]",
    f"f32[{COLUMNS},{COLUMNS}]",
)
HEAD = f"""HloModule generated, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %main (x: {ARRAY}, y: {ARRAY}, w: {SQUARE}) -> {ARRAY} {{
  %x = {ARRAY}{{1,0}} parameter(0)
  %y = {ARRAY}{{1,0}} parameter(1)
  %w = {SQUARE}{{1,0}} parameter(2)
"""
BINARY = ("add", "multiply", "subtract", "maximum")
UNARY = ("tanh", "exponential", "negate", "abs")
PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
COLLECTIVE = "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%sum"


def generated(operations: int) -> str:
    """The text of a module with about as many operations; every value is used soon."""
    choice = random.Random(0)
    recent, lines = ["x", "y"], []
    while len(lines) < operations:
        name, value, other = f"v{len(lines)}", choice.choice(recent), choice.choice(recent)
        kind = choice.choices(
            ("binary", "unary", "dot", "all-reduce", "reshape"), (55, 20, 10, 7, 8)
        )[0]
        if kind == "binary":
            lines.append(f"%{name} = {ARRAY}{{1,0}} {choice.choice(BINARY)}(%{value}, %{other})")
        elif kind == "unary":
            lines.append(f"%{name} = {ARRAY}{{1,0}} {choice.choice(UNARY)}(%{value})")
        elif kind == "dot":
            lines.append(f"%{name} = {ARRAY}{{1,0}} dot(%{value}, %w), {PRODUCT}")
        elif kind == "all-reduce":
            channel = f"channel_id={len(lines) + 1}, {COLLECTIVE}"
            lines.append(f"%{name} = {ARRAY}{{1,0}} all-reduce(%{value}), {channel}")
        else:
            lines.append(f"%{name} = {FLAT}{{0}} reshape(%{value})")
            lines.append(f"%{name}.back = {ARRAY}{{1,0}} reshape(%{name})")
            name = f"{name}.back"
        recent = [*recent[-7:], name]
    noted = [f'  {line}, metadata={{op_name="jit(f)/{k}"}}\n' for k, line in enumerate(lines)]
    noted[-1] = noted[-1].replace("  %", "  ROOT %", 1)
    return HEAD + "".join(noted) + "}\n"


GRAMMAR = r"""
start: "HloModule" NAME ("," attribute)* table* computation+
table: TABLE (NUMBER (STRING | braces))*
computation: "ENTRY"? VALUE "(" (parameter ("," parameter)*)? ")" "->" bare "{" instruction+ "}"
parameter: NAME ":" bare
bare: ARRAY | "(" (bare ("," bare)*)? ")"
instruction: "ROOT"? VALUE "=" type NAME "(" (operand ("," operand)*)? ")" ("," attribute)*
type: ARRAY braces? | "(" (type ("," type)*)? ")"
operand: type? VALUE | NAME | NUMBER | STRING | SIGN | braces
attribute: NAME "=" value
value: VALUE | piece+
piece: NAME | NUMBER | STRING | "<=" | braces | brackets | parentheses
braces: "{" inner* "}"
brackets: "[" inner* "]"
parentheses: "(" inner* ")"
inner: piece | VALUE | ARRAY | "=" | "," | ":" | "->" | SIGN
TABLE.2: /(FileNames|FunctionNames|FileLocations|StackFrames)\b/
ARRAY.2: /[a-z][a-z0-9]*\[[\d,]*\]/
VALUE: /%[\w.\-]+/
NAME: /[A-Za-z_][\w.\-]*/
NUMBER: /-?(\d+(\.\d+)?(e[+\-]?\d+)?\w*|inf|nan)/
STRING: /"(?:[^"\\]|\\.)*"/
SIGN: /'[^']*'|\.\.\./
%ignore /\s+|\/\*.*?\*\//
"""


def plain_lark() -> Callable[[str], object]:
    import lark

    return lark.Lark(GRAMMAR, parser="lalr").parse


def jaxlib_parser() -> Callable[[str], object]:
    from jaxlib import _hlo

    return _hlo.hlo_module_from_text


def our_parser() -> Callable[[str], object]:
    from ncc_compiler.diagnostics import Source
    from ncc_compiler.syntax.parse import parse

    return lambda text: parse(Source("generated", text))


def our_graph() -> Callable[[str], object]:
    from ncc_compiler.driver import load_text

    return load_text


def our_compiler() -> Callable[[str], object]:
    from ncc_compiler.driver import compile_text

    return compile_text


def our_thorough_compiler() -> Callable[[str], object]:
    from ncc_compiler.driver import compile_text
    from ncc_compiler.options import CompileOptions

    return functools.partial(compile_text, options=CompileOptions(level=2))


READERS = {
    "plain lark, tree": plain_lark,
    "jaxlib, HloModule": jaxlib_parser,
    "ncc, tree": our_parser,
    "ncc, verified graph": our_graph,
    "ncc, program and file": our_compiler,
    "the same with -O2": our_thorough_compiler,
}


def measured(name: str, text: str, repeats: int) -> dict[str, float]:
    """Least seconds of processor time and peak memory of one reader, in this process."""
    read = READERS[name]()
    read(generated(50))  # what is imported or built once is not counted
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        read(text)
        seconds.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": min(seconds), "peak_mib": peak}


def compare(model: str, text: str, repeats: int) -> None:
    """Print one line for each reader of a text."""
    lines = text.count("\n")
    print(f"\n{model}: {lines} lines, {len(text)} bytes")
    print(f"{'reader':<24}{'seconds':>9}{'lines/s':>12}{'peak MiB':>10}")
    for name in READERS:
        if name.startswith("jaxlib") and importlib.util.find_spec("jaxlib") is None:
            print(f"{name:<24}{'not installed: pip install ncc[jax]':>31}")
            continue
        command = [sys.executable, __file__, "--reader", name, "--repeats", str(repeats)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"{name:<24}cannot read it: {reason[:80]}")
            continue
        row = json.loads(done.stdout)
        speed = lines / row["seconds"]
        print(f"{name:<24}{row['seconds']:>9.3f}{speed:>12,.0f}{row['peak_mib']:>10.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="HLO texts to read as well")
    parser.add_argument("--ops", type=int, default=20_000, help="of the module that is generated")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        print(json.dumps(measured(given.reader, sys.stdin.read(), given.repeats)))
        return
    print(f"{time.strftime('%Y-%m-%d')}, one core, processor time, the least of {given.repeats}")
    compare(f"{given.ops} operations", generated(given.ops), given.repeats)
    for model in given.models:
        compare(model.name, model.read_text(encoding="utf-8"), given.repeats)


if __name__ == "__main__":
    main()
