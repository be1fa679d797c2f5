"""How long an MSCCL file takes to be read, checked, filled and proved; seconds of processor time.

The files are written here, of about 34,000 steps each: a ring whose chunks wait for one another, so
that nearly every step is a transfer of its own, and all pairs, where many members do alike.

Run: python benchmarks/plan_files.py [NAME ...]
"""

import argparse
import platform
import tempfile
import time
from pathlib import Path

import ncc_compiler
from ncc_runtime.runtime import load, program_of

Steps = dict[tuple[int, int, int, int], list[str]]
"""Steps of thread blocks, by gpu, whom it sends to, whom it receives from, and channel."""


def ring(gpus: int = 32, instances: int = 17) -> tuple[str, int, int, Steps]:
    """Chunk after chunk goes around twice; the thread blocks hold one chunk up for another."""
    blocks: Steps = {}
    for instance in range(instances):
        for chunk in range(gpus):
            channel = 2 * instance + chunk % 2
            at = chunk * instances + instance
            for step in range(2 * gpus - 1):
                gpu = (chunk + 1 + step) % gpus
                kind = "s" if not step else "rrcs" if step < gpus else "rcs"
                kind = "r" if step == 2 * gpus - 2 else kind
                key = gpu, (gpu + 1) % gpus, (gpu - 1) % gpus, channel
                blocks.setdefault(key, []).append(_step(kind, at))
    return "allreduce", gpus, gpus * instances, blocks


def pairs(gpus: int = 128) -> tuple[str, int, int, Steps]:
    """Everybody to everybody, each by a thread block of its own."""
    blocks = Steps()
    for gpu in range(gpus):
        blocks[gpu, -1, -1, 0] = [_step("cpy", gpu, ("i", "o"), gpu)]
        for peer in range(gpus):
            if peer != gpu:
                sent, came = _step("s", peer, ("i", "o"), gpu), _step("r", gpu, ("i", "o"), peer)
                blocks[gpu, peer, peer, 0] = [sent, came]
    return "alltoall", gpus, gpus, blocks


def _step(kind: str, at: int, buffers: tuple[str, str] = ("i", "i"), to: int | None = None) -> str:
    return (
        f'type="{kind}" srcbuf="{buffers[0]}" srcoff="{at}" dstbuf="{buffers[1]}" '
        f'dstoff="{at if to is None else to}" cnt="1" depid="-1" deps="-1" hasdep="0"'
    )


def xml(coll: str, gpus: int, chunks: int, blocks: Steps) -> str:
    """The file."""
    channels = 1 + max(channel for _, _, _, channel in blocks)
    lines = [
        f'<algo name="benchmark" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{gpus}" '
        f'coll="{coll}" inplace="{int(coll == "allreduce")}" proto="LL">'
    ]
    for gpu in range(gpus):
        lines.append(f'<gpu id="{gpu}">')
        its = (item for item in blocks.items() if item[0][0] == gpu)
        for number, ((_, send, recv, channel), steps) in enumerate(its):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">')
            lines += [f'<step s="{place}" {step}/>' for place, step in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def model(coll: str, gpus: int, chunks: int) -> str:
    """A program with the collective that the file is for."""
    group = ",".join(map(str, range(gpus)))
    elements = 4 * chunks
    if coll == "alltoall":
        call = f"all-to-all(x), replica_groups={{{{{group}}}}}, dimensions={{0}}"
    else:
        call = f"all-reduce(x), replica_groups={{{{{group}}}}}, to_apply=sum"
    return f"""
sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
ENTRY main {{
  x = f32[{elements}] parameter(0)
  ROOT y = f32[{elements}] {call}
}}
"""


FILES = {"ring": ring, "pairs": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(FILES), metavar="NAME", help="ring, pairs")
    names = parser.parse_args().names
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.xml"
        for name in names:
            coll, gpus, chunks, blocks = FILES[name]()
            path.write_text(xml(coll, gpus, chunks, blocks))
            program = program_of(ncc_compiler.compile_text(model(coll, gpus, chunks)))
            load(program)  # imports and what is known of the topology
            start = time.process_time()
            loaded = load(program, plans=[str(path)])
            filled = time.process_time()
            assert all(not proof.breaches for proof in loaded.proofs)
            proved = time.process_time()
            print(
                f"{name:6} {sum(map(len, blocks.values())):6} steps: loaded in "
                f"{filled - start:5.2f} s, proved in {proved - filled:5.2f} s"
            )


if __name__ == "__main__":
    main()
