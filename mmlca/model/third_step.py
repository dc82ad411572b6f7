"""The parts of a third step: membership, means, and regressions, as estimating equations.

Each part has parameters θ (a flat array) and three functions. `update` solves the part's equations
given how much each patient counts for each class, W (n, K). `log_density` is what the part adds to
the log-likelihood of a patient in each class, (n, K). `equations` are the patients' terms of the
equations that θ solves, (n, p). W is the assignment, the assignment corrected for errors
(its values may be negative), or the probability of each class after the third step.
`mmlca.model.outcomes` puts the parts together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from font.errors import InputError, option

Floats: TypeAlias = NDArray[np.float64]

_TINY = 1e-300
_FLAT = 1e-7


class Part(Protocol):
    """What all parts have."""

    @property
    def size(self) -> int: ...
    def update(self, members: Floats, theta: Floats | None) -> Floats: ...
    def log_density(self, theta: Floats) -> Floats: ...
    def equations(self, theta: Floats, members: Floats) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Shares(Part):
    """Sizes of the classes as the first step has them: θ = the shares of all but the last.

    `posterior` (n, K) are the memberships of the first step, times the case weights.
    """

    posterior: Floats

    @property
    def size(self) -> int:
        return int(self.posterior.shape[1] - 1)

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        total = self.posterior.sum(axis=0)
        share: Floats = total[:-1] / total.sum()
        return share

    def log_density(self, theta: Floats) -> Floats:
        share = np.append(theta, 1 - theta.sum())
        return np.broadcast_to(np.log(np.maximum(share, _TINY)), self.posterior.shape)

    def equations(self, theta: Floats, members: Floats) -> Floats:
        total = self.posterior.sum(axis=1, keepdims=True)
        result: Floats = self.posterior[:, :-1] - total * theta
        return result


@dataclass(frozen=True, eq=False)
class Membership(Part):
    """Multinomial logit of the class on X (n, q): θ = q coefficients for each class but the first.

    Rows of θ are classes. The equations are Σ_i x_i (W_ik − P_ik) = 0.
    """

    x: Floats
    n_classes: int

    @property
    def size(self) -> int:
        return int(self.x.shape[1] * (self.n_classes - 1))

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        start = np.zeros(self.size) if theta is None else theta
        return _newton(lambda t: self._value(t, members), start, "class membership")

    def _value(self, theta: Floats, members: Floats) -> tuple[Floats, Floats]:
        total = members.sum(axis=1)
        p = np.exp(self.log_density(theta))
        gradient = self.equations(theta, members).sum(axis=0)
        hessian = _softmax_hessian(self.x, p[:, 1:], total)
        return gradient, hessian

    def log_density(self, theta: Floats) -> Floats:
        b = theta.reshape(self.n_classes - 1, -1)
        return log_softmax(np.column_stack([np.zeros(len(self.x)), self.x @ b.T]))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self.log_density(theta))
        rest = members - members.sum(axis=1, keepdims=True) * p
        result: Floats = (rest[:, 1:, None] * self.x[:, None, :]).reshape(len(self.x), -1)
        return result


@dataclass(frozen=True, eq=False)
class Means(Part):
    """Means of Y (n, m) by class: θ = K·m means, and for a continuous Y the K variances.

    Y is one continuous column, or the indicators of all categories but the first.
    """

    y: Floats
    n_classes: int
    continuous: bool

    @property
    def size(self) -> int:
        return self.n_classes * (int(self.y.shape[1]) + self.continuous)

    def split(self, theta: Floats) -> tuple[Floats, Floats]:
        """Means (K, m) and variances (K,), empty for categories."""
        n_means = self.n_classes * self.y.shape[1]
        return theta[:n_means].reshape(self.n_classes, -1), theta[n_means:]

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        total = members.sum(axis=0)
        mean = members.T @ self.y / total[:, None]
        if not self.continuous:
            result: Floats = mean.ravel()
            return result
        square = (self.y - mean.T) ** 2
        return np.append(mean.ravel(), (members * square).sum(axis=0) / total)

    def log_density(self, theta: Floats) -> Floats:
        mean, variance = self.split(theta)
        if self.continuous:
            return gaussian(self.y - mean.T, variance)
        every = np.column_stack([1 - mean.sum(axis=1), mean])
        first = 1 - self.y.sum(axis=1)
        result: Floats = np.column_stack([first, self.y]) @ np.log(np.maximum(every, _TINY)).T
        return result

    def equations(self, theta: Floats, members: Floats) -> Floats:
        mean, variance = self.split(theta)
        n = len(self.y)
        terms = (members[:, :, None] * (self.y[:, None, :] - mean)).reshape(n, -1)
        if not self.continuous:
            return terms
        return np.hstack([terms, members * ((self.y - mean.T) ** 2 - variance)])


@dataclass(frozen=True, eq=False)
class Line(Part):
    """Linear regression of y (n,) on class and Z (n, q): θ = K levels, q slopes, K variances.

    With `weigh` residuals count by the inverse of their class's variance, as in a likelihood.
    """

    y: Floats
    z: Floats
    n_classes: int
    weigh: bool

    @property
    def size(self) -> int:
        return 2 * self.n_classes + int(self.z.shape[1])

    def _split(self, theta: Floats) -> tuple[Floats, Floats]:
        """Residuals (n, K) and variances (K,)."""
        k = self.n_classes
        fit = theta[:k] + (self.z @ theta[k:-k])[:, None]
        return self.y[:, None] - fit, theta[-k:]

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        k = self.n_classes
        variance = np.ones(k) if theta is None or not self.weigh else theta[-k:]
        w = members / variance
        cross = w.T @ self.z
        left = np.block(
            [
                [np.diag(w.sum(axis=0)), cross],
                [cross.T, (self.z * w.sum(axis=1)[:, None]).T @ self.z],
            ]
        )
        right = np.append(w.T @ self.y, self.z.T @ (w.sum(axis=1) * self.y))
        beta = np.linalg.solve(left, right)
        rest, _ = self._split(np.append(beta, variance))
        return np.append(beta, (members * rest**2).sum(axis=0) / members.sum(axis=0))

    def log_density(self, theta: Floats) -> Floats:
        return gaussian(*self._split(theta))

    def equations(self, theta: Floats, members: Floats) -> Floats:
        rest, variance = self._split(theta)
        w = members * rest / (variance if self.weigh else 1.0)
        return np.hstack(
            [w, w.sum(axis=1)[:, None] * self.z, members * (rest**2 - variance)],
        )


@dataclass(frozen=True, eq=False)
class Logit(Part):
    """Multinomial logit of categories Y (n, m), all but the first, on class and Z (n, q).

    θ has one row of K levels and q slopes for each of the m categories.
    """

    y: Floats
    z: Floats
    n_classes: int

    @property
    def size(self) -> int:
        return int(self.y.shape[1] * (self.n_classes + self.z.shape[1]))

    def _log(self, theta: Floats) -> Floats:
        """Log-probabilities (n, K, m + 1), the first category first."""
        b = theta.reshape(self.y.shape[1], -1)
        level, slope = b[:, : self.n_classes].T, b[:, self.n_classes :].T
        eta = level[None] + (self.z @ slope)[:, None, :]
        return log_softmax(np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1))

    def update(self, members: Floats, theta: Floats | None) -> Floats:
        start = np.zeros(self.size) if theta is None else theta
        return _newton(lambda t: self._value(t, members), start, "the outcome")

    def _value(self, theta: Floats, members: Floats) -> tuple[Floats, Floats]:
        gradient = self.equations(theta, members).sum(axis=0)
        p = np.exp(self._log(theta))[..., 1:]
        n, k = members.shape
        x = np.concatenate(
            [np.broadcast_to(np.eye(k), (n, k, k)), np.repeat(self.z[:, None], k, axis=1)], axis=-1
        )
        m = p.shape[-1]
        return gradient, _softmax_hessian(
            x.reshape(n * k, -1), p.reshape(n * k, m), members.ravel()
        )

    def log_density(self, theta: Floats) -> Floats:
        every = np.column_stack([1 - self.y.sum(axis=1), self.y])
        result: Floats = (self._log(theta) * every[:, None, :]).sum(axis=-1)
        return result

    def equations(self, theta: Floats, members: Floats) -> Floats:
        p = np.exp(self._log(theta))[..., 1:]
        rest = members[..., None] * (self.y[:, None, :] - p)  # (n, K, m)
        slopes = rest.sum(axis=1)[:, :, None] * self.z[:, None, :]  # (n, m, q)
        both = np.concatenate([rest.transpose(0, 2, 1), slopes], axis=-1)
        result: Floats = both.reshape(len(self.y), -1)
        return result


# --- inside ---------------------------------------------------------------------------------


def gaussian(rest: Floats, variance: Floats) -> Floats:
    """Log-densities of residuals (n, K)."""
    safe = np.maximum(variance, _TINY)
    result: Floats = -0.5 * (np.log(2 * np.pi * safe) + rest**2 / safe)
    return result


def log_softmax(eta: Floats) -> Floats:
    top = eta.max(axis=-1, keepdims=True)
    result: Floats = eta - top - np.log(np.exp(eta - top).sum(axis=-1, keepdims=True))
    return result


def _softmax_hessian(x: Floats, p: Floats, weight: Floats) -> Floats:
    """Σ weight · (diag(p) − p pᵀ) ⊗ x xᵀ, with one block per pair of categories."""
    m, q = p.shape[1], x.shape[1]
    hessian = np.empty((m, q, m, q))
    for a in range(m):
        for b in range(a, m):
            w = weight * p[:, a] * ((a == b) - p[:, b])
            hessian[a, :, b, :] = hessian[b, :, a, :] = (x * w[:, None]).T @ x
    return hessian.reshape(m * q, m * q)


def _newton(value: Any, start: Floats, what: str) -> Floats:
    """The root of a gradient by Newton's method, each step shortened until the gradient falls."""
    theta = start
    gradient, hessian = value(theta)
    scale = 1 + np.abs(gradient).max(initial=0.0)
    width = np.sqrt(np.maximum(np.abs(np.diag(hessian)), _TINY))
    for _ in range(100):
        if np.abs(gradient).max(initial=0.0) < 1e-10 * scale:
            flat = np.abs(np.linalg.eigvalsh(hessian / np.outer(width, width))).min(initial=1.0)
            if flat < _FLAT:  # the solution lies at infinity
                break
            return theta
        try:
            step = np.linalg.solve(hessian, gradient)
        except np.linalg.LinAlgError:
            break
        size, length = np.linalg.norm(gradient), 1.0
        while length > 1e-6:
            trial, further = value(theta + length * step)
            if np.linalg.norm(trial) < size:
                break
            length /= 2
        else:
            if size < 1e-7 * scale:  # as near as rounding lets it come
                return theta
            break
        theta, gradient, hessian = theta + length * step, trial, further
    raise InputError(
        f"the regression of {what} has no finite solution: a covariate or a class determines it "
        "completely, or the corrected weights are too negative; leave a covariate out, merge rare "
        f"categories, or choose {option('correction', 'ML')} or no correction."
    )
