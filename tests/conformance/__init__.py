"""What programs mean, written down: small programs with the values that every rank must hold.

The folders `hlo/` and `stablehlo/` hold files of cases, parted by lines `// -----`. A case begins
with comments, values as JSON:

    // case: what is to be seen
    // ranks: 4                        how many run it; one unless said
    // input: [[1, 2], [3, 4]]         a parameter's values, [ranks, *shape] or [*shape] for all
    // output: [[4, 6], [4, 6]]        a result's values, likewise
    // near: 1e-6                      relative tolerance; outputs are the same bits unless said
    // refused: all-gather-C3          instead of outputs: what the complaint contains

and goes on with the program. Complex values are pairs [real, imaginary] of numbers.

Values are worked out from the specifications of StableHLO and XLA, not taken from a run.
"""
