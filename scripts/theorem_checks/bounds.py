"""The bounds that the papers prove, as functions of the constants that they assume to be known.

Each function names its readings. Where the statement and the proof of a theorem differ, the proof is used, and
``printed=True`` gives the statement instead. If the leading constant of a bound is not positive, there is no bound and
the value is infinity.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class Setting(NamedTuple):
    """The constants that the theorems assume to be known.

    Attributes:
      smoothness: L, of every client's loss.
      noise: sigma_L^2, the variance of a mini-batch's gradient.
      heterogeneity: sigma_G^2, the squared distance of a client's gradient from the mean gradient.
      gap: ``f(theta_0) - f*``.
      step_size: eta.
      local_steps: U.
    """

    smoothness: float
    noise: float
    heterogeneity: float
    gap: float
    step_size: float
    local_steps: int

    @property
    def reach(self) -> float:
        """``eta L U``, at most 1/8 in the theorems on DRAG."""
        return self.step_size * self.smoothness * self.local_steps


class Proof(NamedTuple):
    """Where the two proofs for DRAG differ.

    Attributes:
      noise: factor of ``c eta sigma_L^2``.
      pull: factor of ``c eta / U`` before the squared sum of a client's gradients.
    """

    noise: float
    pull: float


XIAO, ZHU = Proof(2.0, 3.0), Proof(4.0, 5.0)


def drag_rate(setting: Setting, c: float, proof: Proof) -> float:
    """``gamma``, the smallest share of the squared gradient by which a round of DRAG descends; linear in c.

    For c = 0 it is positive up to ``eta L U`` = 0.1237, a little less than the theorems' 1/8.
    """
    reach = setting.reach
    return (1 - 3 * c) / 2 - (proof.pull * c + reach / 2) * (90 * reach**2 + 3) - 15 * (1 - c) * reach**2


def largest_c(setting: Setting, proof: Proof) -> float:
    """The c from which on DRAG has no bound; below 1/21 (Xiao et al.) and 1/33 (Zhu et al.) at any step size."""
    at_zero = drag_rate(setting, 0.0, proof)
    return max(0.0, at_zero / (at_zero - drag_rate(setting, 1.0, proof)))


def drag_bound(setting: Setting, c: float, rounds: Any, proof: Proof, printed: bool = False) -> Any:
    """Bound on DRAG's mean squared gradient norm.

    Args:
      setting: the constants.
      c: strength of DRAG.
      rounds: T, a number or an array.
      proof: :data:`XIAO` or :data:`ZHU`.
      printed: take the statement of the theorem instead of its proof.

    References:
      Xiao et al., Theorem 1 and equations 33 to 35: the statement lacks a factor U before ``9 sigma_G^2`` and has an
      extra one in ``eta^2 U^2 L / 2``. Zhu et al., Theorem 1 and equations 27 and 28: the statement lacks a factor U in
      its last term; their ``sigma_L^2`` is that of a single example, which is ``sigma_L^2 / B`` here.
    """
    gamma = drag_rate(setting, c, proof)
    if gamma <= 0:
        return np.full_like(np.asarray(rounds, float), math.inf)[()]
    smooth, noise, spread, gap, eta, steps = setting
    drift = noise + 6 * steps * spread
    descent = gap / (gamma * eta * steps * np.asarray(rounds))
    if printed and proof == XIAO:
        cubic = eta**3 * steps**2 * smooth**2 * (85 * c + 5) / 2 + 15 * eta**4 * steps**3 * smooth**3 / 2
        pull = c * eta * (2 * noise + 9 * spread)
        floor = pull + eta**2 * steps**2 * smooth / 2 * (noise + 3 * steps * spread) + cubic * drift
        return descent + floor / (gamma * eta * steps)
    local = 15 * setting.reach**2 * drift + 3 * steps * spread
    last = 5 * (1 - c) / 2 * (eta * smooth) ** 2 * drift * (1 if printed else steps)
    pull = (proof.pull * c / steps + eta * smooth / 2) * local
    return descent + (proof.noise * c * noise / steps + eta * noise * smooth / 2 + pull + last) / gamma


class Rounds(NamedTuple):
    """The quantities of each round of BR-DRAG that Theorem 2 uses; arrays ``[T]`` unless noted.

    Attributes:
      w: share of malicious clients in the cohort.
      x: sum of the cosines of malicious clients to the reference, divided by S.
      y: the same for benign clients.
      c: strength.
      b: sum of ``b_m = (1 - lambda_m) rho_m`` over benign clients, divided by S.
      b_squares: the same for ``b_m^2``.
      p: smallest ``rho_m = ||r|| / ||g_m||`` of a benign client in any round; a number.
      q: the largest; a number.
    """

    w: np.ndarray
    x: np.ndarray
    y: np.ndarray
    c: np.ndarray
    b: np.ndarray
    b_squares: np.ndarray
    p: float
    q: float

    @property
    def unmet(self) -> np.ndarray:
        """``(1/S) sum (1 - h_m)`` over malicious clients, their influence after the drag; 0 for ``c = w / (w - x)``."""
        return self.w * (1 - self.c) + self.c * self.x


def oracle_step(setting: Setting, rounds: Rounds) -> float:
    """The largest step size for which Theorem 2 promises a bound with ``c = w / (w - x)``."""
    free = (1 - rounds.w.max()) * (1 - rounds.c.max()) * rounds.p
    ways = rounds.p + 2 * rounds.q**2
    return float(free / (setting.local_steps * (32 + 2 * setting.smoothness**2 * ways)))


def oracle_rate(setting: Setting, rounds: Rounds) -> float:
    """``chi`` of the first case of Theorem 2, equation 48."""
    reach, moved = setting.reach, setting.step_size * setting.local_steps
    w, c, p, q = rounds.w, rounds.c, rounds.p, rounds.q
    chi = (1 - w) * (1 - c) * p / 2 - 8 * moved - 4 * reach**2 * q**2 / ((1 - c) * p) - 4 * c * (1 + w) * reach**2
    return float(chi.min())


def byzantine_rate(setting: Setting, rounds: Rounds) -> float:
    """The smallest ``D_1`` of equation 47, taken for the ``chi`` that the second case of Theorem 2 leaves open."""
    smooth, moved = setting.smoothness, setting.step_size * setting.local_steps
    w, x, y, c, b = rounds[:5]
    delta, kappa = c * (w - x), c * (1 - w - y)  # both divided by eta U
    descent = kappa / 2 + b / 2 - 8 * moved - 4 * (delta + kappa) * (moved * smooth) ** 2
    return float((descent - 4 * (moved * smooth) ** 2 / b * rounds.b_squares - 4 * rounds.unmet**2 / delta).min())


def byzantine_bound(setting: Setting, rounds: Rounds, count: Any, rate: float) -> Any:
    """Bound on BR-DRAG's mean squared gradient norm.

    Args:
      setting: the constants.
      rounds: the quantities of each round.
      count: T, a number or an array.
      rate: ``chi``, from :func:`oracle_rate` or :func:`byzantine_rate`.

    References:
      Xiao et al., Theorem 2 and equations 45 to 52. [reading] ``||unmet||`` in H is squared, as in the proof.
      [reading] The step sizes, ``D_1`` and ``D_2`` lack the factor L/2 of the last term of equation 36, so they are
      right for ``L <= 2`` only. [reading] ``sigma_L^2`` must hold for the root data too, because W contains no other
      noise. The clients' heterogeneity does not occur: equation 43 replaces their gradients by the global one, and
      equation 46 replaces their drift by that of the root pass.
    """
    if rate <= 0:
        return np.full_like(np.asarray(count, float), math.inf)[()]
    eta, moved = setting.step_size, setting.step_size * setting.local_steps
    squared, c, w = setting.smoothness**2, rounds.c.max(), rounds.w.max()
    unmet = (rounds.unmet**2 / (2 * rounds.c * moved * (rounds.w - rounds.x))).max()
    spread = (1 + w) * c * moved * squared / 2 + moved * squared * rounds.q**2 / (2 * (1 - c) * rounds.p)
    floor = 2 * eta * setting.noise / rate * (spread + unmet + 1)
    return setting.gap / (rate * moved * np.asarray(count)) + floor


def over_correction(alpha: np.ndarray, ratios: np.ndarray) -> float:
    """TACO's ``Y_t`` without its constants, ``(sum (1 - alpha_i) sum mu_i / c_i)^2``.

    Args:
      alpha: coefficients, ``[M]``.
      ratios: ``mu_i / c_i``, ``[M]``.

    References:
      Liu et al., Theorem 1. Corollary 2 says that ``1 - alpha_i`` in proportion to ``mu_i / c_i`` minimizes it, but
      it depends on the sum of the ``alpha_i`` only, not on which client has which coefficient.
    """
    return float(((1 - alpha).sum() * ratios.sum()) ** 2)


def paired_correction(alpha: np.ndarray, ratios: np.ndarray) -> float:
    """``(sum (1 - alpha_i) mu_i / c_i)^2``, the product of sums in ``Y_t`` read as a sum of products.

    Cauchy's inequality in the proof of Corollary 2 is about this form; proportional terms maximize it.
    """
    return float(((1 - alpha) * ratios).sum() ** 2)
