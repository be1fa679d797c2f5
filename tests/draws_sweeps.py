"""Points of sweeps: words, and other words that say the same."""

from typing import Any

from hypothesis import strategies as st

Words = dict[str, Any]

ALIASES = {"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge", "inf2": "inf2.48xlarge"}
OPERATORS = {"all_reduce": "allr", "all_gather": "allg", "alltoall": "all_to_all"}
OPS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "alltoall": "all-to-all"}


@st.composite
def bench_words(draw: st.DrawFn) -> Words:
    """A bench of few ranks, by the keys that it needs and some of the others."""
    words: Words = {
        "op": draw(st.sampled_from(sorted(OPERATORS))),
        "ranks": draw(st.sampled_from([2, 4, 8])),
        "size": draw(st.sampled_from([64, 4096, 1 << 20])),
    }
    others: Words = {
        "topology": draw(st.sampled_from(sorted(ALIASES))),
        "placement": "spread",
        "dtype": draw(st.sampled_from(["bf16", "fp32"])),
        "policy": draw(st.sampled_from(["neuron", "best"])),
        "deterministic": True,
        "down": draw(st.permutations(["c0-c1", "c1-c2"])),
        "slow": ["c0.core0=50%"],
        "fault": ["rank 1 slow to 50%"],
    }
    kept = draw(st.sets(st.sampled_from(sorted(others))))
    if "fault" in kept and draw(st.booleans()):
        words["fault_seed"] = draw(st.integers(0, 3))
    return words | {key: others[key] for key in kept}


@st.composite
def spelt_otherwise(draw: st.DrawFn, words: Words) -> Words:
    """The same point in other words, in another order."""
    said = dict(words)
    if draw(st.booleans()):
        said["op"] = OPERATORS[said["op"]]
    if draw(st.booleans()):
        said["size"] = {64: "64", 4096: "4KB", 1 << 20: "1MiB"}[said["size"]]
    defaults: Words = {
        "dtype": "fp32",
        "placement": "linear",
        "policy": "neuron",
        "deterministic": False,
        "nodes": 1,
        "algorithm": [],
        "samples": 512,
        "task": "anything",
        "fault_seed": 0,
    }
    if "topology" not in said:
        defaults["topology"] = "trn2"
    defaults["lnc"] = 2 if said.get("topology", "trn2") == "trn2" else 1
    for key in draw(st.sets(st.sampled_from(sorted(defaults)))):
        said.setdefault(key, defaults[key])
    if "topology" in said and draw(st.booleans()):
        said["topology"] = ALIASES[said["topology"]]
    if "down" in said:
        names = draw(st.permutations(said["down"]))
        turned = ["-".join(reversed(name.split("-"))) for name in names]
        said["down"] = draw(st.sampled_from([names, turned, names + turned]))
    if "topology" in said and draw(st.booleans()):
        place = said.pop("topology")
        for key in ("nodes", "placement", "lnc", "policy"):
            if key in said:
                place += f",{key}={said.pop(key)}"
        for key in ("down", "slow"):
            place += "".join(f",{key}={word}" for word in said.pop(key, ()))
        said["on"] = place + ",deterministic" * said.pop("deterministic", False)
    return dict(draw(st.permutations(sorted(said.items(), key=lambda item: item[0]))))
