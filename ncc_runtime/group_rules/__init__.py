"""What Neuron's rules say of a program's groups on a placement."""
