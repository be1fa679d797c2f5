"""Proofs about a placed program, made before it runs; nothing here is shared with what made it."""
