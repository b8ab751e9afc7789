"""The bounds that the papers prove, as functions of what they assume to be known.

Each function says which readings it took. Where statement and proof of a theorem differ, the proof counts:
``printed=True`` gives the statement instead. A bound whose constant in front is not positive does not exist: infinity.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class Setting(NamedTuple):
    """What the theorems assume to be known.

    Attributes:
      smoothness: L, of every client's loss.
      noise: sigma_L^2, variance of a mini-batch's gradient.
      heterogeneity: sigma_G^2, squared distance of a client's gradient from the mean one.
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
    """``gamma``, the share of the squared gradient by which a round of DRAG descends at least; linear in c.

    For c = 0 it is positive up to ``eta L U`` = 0.1237, a little less than the theorems' 1/8.
    """
    reach = setting.reach
    return (1 - 3 * c) / 2 - (proof.pull * c + reach / 2) * (90 * reach**2 + 3) - 15 * (1 - c) * reach**2


def largest_c(setting: Setting, proof: Proof) -> float:
    """From which c on there is no bound on DRAG: below 1/21 (Xiao et al.) and 1/33 (Zhu et al.) for any step size."""
    at_zero = drag_rate(setting, 0.0, proof)
    return max(0.0, at_zero / (at_zero - drag_rate(setting, 1.0, proof)))


def drag_bound(setting: Setting, c: float, rounds: Any, proof: Proof, printed: bool = False) -> Any:
    """Bound on DRAG's mean squared gradient norm over ``rounds`` (a number or an array).

    References:
      Xiao et al., Theorem 1 and equations 33 to 35: the statement lacks a factor U before ``9 sigma_G^2`` and has one
      too many in ``eta^2 U^2 L / 2``. Zhu et al., Theorem 1 and equations 27 and 28: the statement lacks a factor U in
      its last term. The latter's ``sigma_L^2`` is a single example's, and ``sigma_L^2 / B`` here.
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
    """What Theorem 2 is told of rounds of BR-DRAG; each ``[T]``.

    Attributes:
      w: share of malicious clients in the cohort.
      x: sum of their cosines to the reference, over S.
      y: the same of the benign ones.
      c: strength.
      b: sum over the benign of ``b_m = (1 - lambda_m) rho_m``, over S.
      b_squares: the same of ``b_m^2``.
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
        """``(1/S) sum (1 - h_m)`` over the malicious: what the drag leaves of them, 0 for ``c = w / (w - x)``."""
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
    """The smallest ``D_1`` of equation 47, where the second case of Theorem 2 only says that some ``chi`` exists."""
    smooth, moved = setting.smoothness, setting.step_size * setting.local_steps
    w, x, y, c, b = rounds[:5]
    towards, benign = c * (w - x), c * (1 - w - y)  # delta and kappa over eta U
    falls = benign / 2 + b / 2 - 8 * moved - 4 * (towards + benign) * (moved * smooth) ** 2
    return float((falls - 4 * (moved * smooth) ** 2 / b * rounds.b_squares - 4 * rounds.unmet**2 / towards).min())


def byzantine_bound(setting: Setting, rounds: Rounds, count: Any, rate: float) -> Any:
    """Bound on BR-DRAG's mean squared gradient norm over ``count`` rounds (a number or an array).

    References:
      Xiao et al., Theorem 2 and equations 45 to 52. Readings: ``||unmet||`` in H is squared, as in the proof. The step
      sizes, ``D_1`` and ``D_2`` lack the factor L/2 of the last term of equation 36, which makes them right for
      ``L <= 2`` only. ``sigma_L^2`` must hold for the root data as well, whose noise is all there is in W; the clients'
      heterogeneity does not occur: equation 43 takes their gradients for the global one, and 46 their drift for that
      of the root pass.
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

    References:
      Liu et al., Theorem 1. Corollary 2 says that ``1 - alpha_i`` in proportion to ``mu_i / c_i`` makes it smallest,
      but it depends on the sum of the ``alpha_i`` only: who has which does not matter.
    """
    return float(((1 - alpha).sum() * ratios.sum()) ** 2)


def paired_correction(alpha: np.ndarray, ratios: np.ndarray) -> float:
    """``(sum (1 - alpha_i) mu_i / c_i)^2``, the product of sums in ``Y_t`` read as a sum of products.

    It is what Cauchy's inequality in the proof of Corollary 2 is about; proportional terms make it largest.
    """
    return float(((1 - alpha) * ratios).sum() ** 2)
