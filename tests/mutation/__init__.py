"""Whether the proofs refuse every fault that some interleaving can show."""
