"""Names that a program with partial all-reduces has, for the compiler and the runtime.

Source of the term: Li, Ben-Nun et al., "Taming Unbalanced Training Workloads in Deep Learning with
Partial Collective Operations", PPoPP 2020.
"""

TAKES_PART = "takes_part"
"""The input that says which ranks' gradients of this step are counted in it: pred[ranks]."""

BEGINS = "begins"
"""The input that says which ranks begin this step, since no older gradient keeps them: pred[ranks].

A rank that takes part begins."""

CARRIED = "carried."
"""Before the name of an all-reduce: the input and the output with what is added in the next step.

Where nothing is carried it is -0.0, which changes no number that it is added to."""

PARTIAL = ".partial"
"""Behind the name of an all-reduce that takes what is there, and does not wait for the others."""
