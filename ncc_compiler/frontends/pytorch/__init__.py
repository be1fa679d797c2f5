"""PyTorch programs into HLO text: nothing outside of this folder imports torch."""
