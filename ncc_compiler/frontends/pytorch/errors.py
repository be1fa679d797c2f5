"""How programs are refused that cannot be traced."""

import importlib.util
import os

from ncc_compiler.frontends.users_code import refusal

HELP = "install both as they belong together: pip install 'neuron-ncc[torch]'"


def offer_xla_devices(ranks: int | None) -> None:
    """Has PyTorch/XLA find so many virtual CPU devices, if it has not begun to look for any.

    What the user set stays.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # of XLA's warnings of its own future
    if ranks is not None:
        os.environ.setdefault("CPU_NUM_DEVICES", str(ranks))


def require_torch(ranks: int | None = None) -> None:
    """Raises CompileError if PyTorch/XLA, or the torch that it is for, is not installed."""
    for name in ("torch", "torch_xla"):
        if importlib.util.find_spec(name) is None:
            raise refusal(
                f"programs of PyTorch take {name}, which is not installed",
                advice=HELP,
            )
    offer_xla_devices(ranks)
