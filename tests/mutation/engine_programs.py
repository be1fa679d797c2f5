"""Small models in which engines and collectives share memory, also in loops and branches."""

HEADER = """HloModule {name}, replica_count={ranks}

sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
"""

BEFORE_AND_AFTER = """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] add(x, x)
  r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
  ROOT z = f32[4] multiply(r, y)
}
"""

OPERAND_USED_AGAIN = """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] add(x, x)
  r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
  s = f32[4] multiply(r, x)
  q = f32[4] all-reduce(s), replica_groups={}, to_apply=sum
  u = f32[4] tanh(q)
  ROOT z = f32[4] all-reduce(u), replica_groups={}, to_apply=sum
}
"""

TWO_STREAMS = """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] add(x, x)
  r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
  w = f32[4] tanh(x)
  q = f32[4] all-reduce(w), replica_groups={}, to_apply=sum, frontend_attributes={stream_id="1"}
  s = f32[4] add(r, q)
  ROOT z = f32[4] all-reduce(s), to_apply=sum, frontend_attributes={stream_id="1"}
}
"""

SAME_OPERAND_TWICE = """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] add(x, x)
  r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
  q = f32[8] all-gather(y), dimensions={0}, frontend_attributes={stream_id="1"}
  ROOT z = (f32[4], f32[8]) tuple(r, q)
}
"""

LOOP = """
body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  v = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  y = f32[4] add(v, v)
  r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
  ROOT t = (s32[], f32[4]) tuple(n, r)
}

condition {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  most = s32[] constant(2)
  ROOT go = pred[] compare(i, most), direction=LT
}

ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[4]) tuple(zero, x)
  w = (s32[], f32[4]) while(t), condition=condition, body=body
  v = f32[4] get-tuple-element(w), index=1
  r = f32[4] all-reduce(v), replica_groups={}, to_apply=sum
  ROOT z = f32[4] add(r, x)
}
"""

BRANCH = """
yes {
  v = f32[4] parameter(0)
  y = f32[4] add(v, v)
  ROOT r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
}

no {
  v = f32[4] parameter(0)
  ROOT y = f32[4] tanh(v)
}

ENTRY main {
  x = f32[4] parameter(0)
  c = pred[] parameter(1)
  y = f32[4] multiply(x, x)
  b = f32[4] conditional(c, y, y), true_computation=yes, false_computation=no
  ROOT r = f32[4] all-reduce(b), replica_groups={}, to_apply=sum
}
"""

LOCAL_LOOP = """
body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  v = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  y = f32[4] tanh(v)
  z = f32[4] add(y, v)
  ROOT t = (s32[], f32[4]) tuple(n, z)
}

condition {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  most = s32[] constant(2)
  ROOT go = pred[] compare(i, most), direction=LT
}

ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[4]) tuple(zero, x)
  w = (s32[], f32[4]) while(t), condition=condition, body=body
  v = f32[4] get-tuple-element(w), index=1
  ROOT r = f32[4] all-reduce(v), replica_groups={}, to_apply=sum
}
"""

LOOP_OF_GROUPS = LOOP.replace("replica_groups={}", "replica_groups={{0,1},{2,3}}", 1)
"""Two pairs of ranks, each of which may run the loop another number of times."""

BRANCH_OF_GROUPS = BRANCH.replace("replica_groups={}", "replica_groups={{0,1},{2,3}}", 1)
"""Two pairs of ranks, which may take another branch each."""

TWO_BRANCHES = """
yes {
  v = f32[4] parameter(0)
  y = f32[4] add(v, v)
  ROOT r = f32[4] all-reduce(y), replica_groups={}, to_apply=sum
}

no {
  v = f32[4] parameter(0)
  ROOT y = f32[4] tanh(v)
}

perhaps {
  v = f32[4] parameter(0)
  ROOT r = f32[4] all-reduce(v), replica_groups={}, to_apply=sum
}

never {
  v = f32[4] parameter(0)
  ROOT y = f32[4] tanh(v)
}

ENTRY main {
  x = f32[4] parameter(0)
  c = pred[] parameter(1)
  d = pred[] parameter(2)
  b = f32[4] conditional(c, x, x), true_computation=yes, false_computation=no
  e = f32[4] conditional(d, b, b), true_computation=perhaps, false_computation=never
  ROOT r = f32[4] add(e, x)
}
"""

BODIES = {
    "before_and_after": BEFORE_AND_AFTER,
    "operand_used_again": OPERAND_USED_AGAIN,
    "two_streams": TWO_STREAMS,
    "same_operand_twice": SAME_OPERAND_TWICE,
    "loop": LOOP,
    "branch": BRANCH,
    "local_loop": LOCAL_LOOP,
    "two_branches": TWO_BRANCHES,
}
"""Models on 2 ranks."""

BODIES_OF_GROUPS = {
    "loop_of_groups": LOOP_OF_GROUPS,
    "branch_of_groups": BRANCH_OF_GROUPS,
}
"""Models on 4 ranks."""


def model_text(name: str, ranks: int) -> str:
    """One of the models, for a number of ranks."""
    return HEADER.format(name=name, ranks=ranks) + (BODIES | BODIES_OF_GROUPS)[name]
