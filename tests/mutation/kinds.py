"""Kinds of mutation that change what some run can do wherever they are made.

Found by exhaustive search on the small matrix, on programs that make use of all that a collective
promises; `test_small.py` holds that it still says so. Larger programs take these kinds only.
"""

NEVER_EQUIVALENT = frozenset(
    (
        "data and signal to another rank",
        "data to another rank",
        "descriptor neither moves nor signals",
        "descriptor not pushed",
        "descriptor only signals",
        "post dropped: arrival",
        "post dropped: done",
        "post dropped: engine",
        "post dropped: sent",
        "post dropped: signal",
        "post of another semaphore: arrival",
        "post of another semaphore: done",
        "post of another semaphore: engine",
        "post of another semaphore: sent",
        "post of another semaphore: signal",
        "post on another rank: arrival",
        "post on another rank: done",
        "post on another rank: engine",
        "post on another rank: sent",
        "post on another rank: signal",
        "ring too small",
        "route over a link of another chip",
        "route that ends too early",
        "second target left out",
        "source shifted by a chunk",
        "source shifted by an element",
        "target shifted by a chunk",
        "target shifted by an element",
        "wait dropped: trigger",
        "wait value + 1: engine",
        "wait value + 1: ready",
        "wait value + 1: sent",
        "wait value + 1: trigger",
        "wait value - 1: trigger",
        "wrong divisor",
    )
)
