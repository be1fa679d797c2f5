"""The least of a mean of fourth powers along lines, in a box: Newton's method, projected.

The mean is convex, so that there is one least value, wherever the descent begins.
"""

import attrs
import numpy as np

STEPS = 200
"""So many steps at most; ten are usual."""

CLOSE = 1e-9
"""Steps that move no variable by more than this part of its scale are the last."""

HALVINGS = 40
"""So often is a step halved that does not lead down."""


@attrs.frozen(eq=False)
class Quartic:
    """The mean of (offset + variables @ slopes)^4, with weights."""

    offset: np.ndarray  # (rows,)
    slopes: np.ndarray  # (variables, rows)
    weights: np.ndarray  # (rows,)

    def __call__(self, at: np.ndarray) -> float:
        return float(self._errors(at) ** 4 @ self.weights)

    def gradient(self, at: np.ndarray) -> np.ndarray:
        """(variables,)"""
        return np.asarray(self.slopes @ (4 * self.weights * self._errors(at) ** 3))

    def hessian(self, at: np.ndarray) -> np.ndarray:
        """(variables, variables)"""
        return np.asarray(
            (self.slopes * (12 * self.weights * self._errors(at) ** 2)) @ self.slopes.T
        )

    def _errors(self, at: np.ndarray) -> np.ndarray:
        return np.asarray(self.offset + at @ self.slopes)


def least_of(quartic: Quartic, begin: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The variables between low and high where it is least."""
    at = np.clip(begin, low, high)
    for _ in range(STEPS):
        further = _step(quartic, at, low, high)
        if (np.abs(further - at) <= CLOSE).all():
            break
        at = further
    return at


def _step(quartic: Quartic, at: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """One step down of the variables that no bound holds."""
    gradient = quartic.gradient(at)
    is_free = ~((at <= low) & (gradient > 0) | (at >= high) & (gradient < 0))
    if not is_free.any():
        return at
    hessian = quartic.hessian(at)[np.ix_(is_free, is_free)]
    ridge = 1e-12 * (np.trace(hessian) + np.finfo(float).tiny)
    newton = np.zeros_like(at)
    newton[is_free] = np.linalg.solve(hessian + ridge * np.eye(len(hessian)), gradient[is_free])
    before, length = quartic(at), 1.0
    for _ in range(HALVINGS):
        further = np.clip(at - length * newton, low, high)
        if quartic(further) < before:
            return np.asarray(further)
        length /= 2
    return at
