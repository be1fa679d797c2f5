"""Tables that compiler and runtime share: element types, reductions, groups, windows, LAPACK."""
