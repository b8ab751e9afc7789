"""Statements of the papers that a calculation decides: what they prove, and what they say about cost.

Each check tries a statement on random or simple cases, and says whether it holds in all of them. One case that
contradicts it decides; that none is found is no proof.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from theorem_checks import loops
from theorem_checks.bounds import (
    XIAO,
    Proof,
    Rounds,
    Setting,
    byzantine_bound,
    byzantine_rate,
    drag_bound,
    drag_rate,
    largest_c,
    oracle_rate,
    oracle_step,
    over_correction,
)

UNIT = Setting(smoothness=1.0, noise=1.0, heterogeneity=1.0, gap=1.0, step_size=0.01, local_steps=5)

TRAFFIC = {"FedAvg": (1, 1), "DRAG at the server": (1, 1), "DRAG's Algorithm 1": (2, 1)}
"""By method, how many times the size of the model a client receives and sends in a round."""

DRAWS = 1000
"""Random rounds in which the conditions of Theorem 2 are tried."""

SHRUNK = 0.02
"""What is left of a bound with the rate ``1 / sqrt(T)`` after 10,000 times the rounds, 0.01, and a little more."""


class Checked(NamedTuple):
    """Whether a statement holds, and the figures that say so."""

    holds: bool
    figures: str


Check = Callable[[], Checked]


def traffic() -> Checked:
    """Whether DRAG, as its Algorithm 1 has it, needs no more communication than FedAvg."""
    totals = {method: sum(both) / sum(TRAFFIC["FedAvg"]) for method, both in TRAFFIC.items()}
    others = ", ".join(f"{method} {times:.1f}" for method, times in totals.items() if method != "DRAG's Algorithm 1")
    own = totals["DRAG's Algorithm 1"]
    return Checked(own <= 1, f"{own:.1f} times FedAvg's: clients receive the reference, too ({others})")


def largest_step(proof: Proof) -> Check:
    """Theorem 1: whether gamma is positive with the step size ``1 / (8 L U)`` and the papers' c."""

    def check() -> Checked:
        step, tiny = (UNIT._replace(step_size=eta) for eta in (1 / 40, 1e-9))
        gammas = [drag_rate(step, c, proof) for c in (0.0, 0.25)]
        found = f"gamma = {gammas[0]:.3f} with c = 0, {gammas[1]:.2f} with 0.25"
        return Checked(min(gammas) > 0, f"{found}; with any step size it needs c < {largest_c(tiny, proof):.3f}")

    return check


def drag_at_the_rate(proof: Proof) -> Check:
    """Theorem 1: whether its bound falls as ``1 / sqrt(T)`` with a step size of that order and a fixed c.

    So that it is not the bound alone, DRAG runs with a step size and a tenth of it.
    """

    def check() -> Checked:
        def bound(c: float, rounds: float) -> float:
            return drag_bound(UNIT._replace(step_size=0.2 / math.sqrt(rounds)), c, rounds, proof)

        bounds = {c: [bound(c, rounds) for rounds in (1e4, 1e8)] for c in (0.0, 0.01)}
        ends = {c: [round(loops.drag(c, step), 9) for step in (0.1, 0.01)] for c in (0.0, 0.25)}
        fell = ", ".join(f"{first:.2g} to {last:.2g} with c = {c}" for c, (first, last) in bounds.items())
        ended = ", ".join(f"{first:.2g} and {last:.2g} with c = {c}" for c, (first, last) in ends.items())
        found = f"bound at 10^4 and 10^8 rounds: {fell}; squared gradient at the end, step size and its tenth: {ended}"
        return Checked(all(last < SHRUNK * first for first, last in bounds.values()), found)

    return check


def step_by_local_steps() -> Checked:
    """Section V-A of Xiao et al.: whether V stays bounded as U grows, with a step size of order ``1 / U``."""
    texts, last = [], {}
    for name, printed in (("by the proof", False), ("as printed", True)):
        settings = (UNIT._replace(step_size=0.05 / steps, local_steps=steps) for steps in (1, 10, 100, 1000))
        values = [float(drag_bound(one, 0.01, math.inf, XIAO, printed)) for one in settings]
        last[printed] = values[-1] / values[1]
        texts.append(f"{name} {', '.join(f'{value:.3g}' for value in values)}")
    return Checked(last[False] < 1.1, f"V at U = 1, 10, 100, 1,000: {'; '.join(texts)}")


def never_longer() -> Checked:
    """Equation 44 of Xiao et al.: whether no modified update is longer than the reference, with c from 1/2 to 1."""
    cosine = np.linspace(-1, 1, 201)
    longest = {}
    for c in (0.5, 0.75, 1.0):
        pull = c * (1 - cosine)
        squares = (1 - pull) ** 2 + pull**2 + 2 * pull * (1 - pull) * cosine
        longest[c] = math.sqrt(squares.max())
    lengths = ", ".join(f"{length:.2f} with c = {c}" for c, length in longest.items())
    return Checked(max(longest.values()) < 1 + 1e-9, f"at most {lengths}, in lengths of the reference")


class Drawn(NamedTuple):
    """A random round of ten clients with malicious ones among them.

    Attributes:
      malicious: cosines of the malicious clients to the reference.
      benign: of the others.
      ratios: ``rho_m`` of the others.
    """

    malicious: np.ndarray
    benign: np.ndarray
    ratios: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, highest: float) -> "Drawn":
        """Benign clients along the reference, and attackers of which none has a cosine above ``highest``."""
        attackers = int(rng.integers(1, 10))
        low, high = np.sort(rng.uniform(0.2, 5.0, 2))
        honest = 10 - attackers
        return cls(rng.uniform(-1, highest, attackers), rng.uniform(0, 1, honest), rng.uniform(low, high, honest))

    @property
    def oracle(self) -> float:
        """``c = w / (w - x)``."""
        return len(self.malicious) / (len(self.malicious) - self.malicious.sum())

    def rounds(self, c: float) -> Rounds:
        """The quantities of Theorem 2 with a strength of c."""
        b = (1 - c * (1 - self.benign)) * self.ratios
        sums = (len(self.malicious), self.malicious.sum(), self.benign.sum(), b.sum(), (b**2).sum())
        w, x, y, first, second = (np.array([one / 10]) for one in sums)
        return Rounds(w, x, y, np.array([c]), first, second, self.ratios.min(), self.ratios.max())


def _drawn(highest: float) -> list[Drawn]:
    rng = np.random.default_rng(0)
    return [Drawn.draw(rng, highest) for _ in range(DRAWS)]


def oracle_steps() -> Checked:
    """Theorem 2, first case: whether chi is positive with the step size that it allows.

    There c is from 1/2 to 1, so the sum of the attackers' cosines is at most 0.
    """
    found = [one.rounds(one.oracle) for one in _drawn(highest=0)]
    rates = [oracle_rate(UNIT._replace(step_size=oracle_step(UNIT, one)), one) for one in found]
    return Checked(min(rates) > 0, f"positive in {sum(rate > 0 for rate in rates)} of {DRAWS} random rounds")


def fixed_steps() -> Checked:
    """Theorem 2, second case: whether its conditions on c and the step size make a positive chi."""
    rates, rng = [], np.random.default_rng(1)
    for one in _drawn(highest=1):
        c = rng.uniform(0.05, 0.95)
        rounds, rho = one.rounds(c), (one.benign * one.ratios).sum() / 10
        w, x, y = (float(values[0]) for values in rounds[:3])
        if (rho**2 - 7 * w + 8 * x - 1) * c**2 + (15 * w + 1) * c >= 8 * w**2 / (w - x):
            room = 2 * c * (1 - c) * (1 - w) * (1 - w - y) * rounds.p
            step = room / (UNIT.local_steps * (32 * rounds.p + c * (rounds.p**2 + rounds.q**2)))
            rates.append(byzantine_rate(UNIT._replace(step_size=step), rounds))
    return Checked(min(rates) > 0, f"positive in {sum(rate > 0 for rate in rates)} of {len(rates)} such random rounds")


def _alike(w: float, cosine: float, c: float) -> Rounds:
    """A round in which benign clients have one cosine to the reference and malicious ones its negative; ratios of 1."""
    share, one, b = np.array([w]), np.ones(1), 1 - c * (1 - cosine)
    return Rounds(share, -share * cosine, (1 - share) * cosine, c * one, (1 - share) * b, (1 - share) * b**2, 1.0, 1.0)


def attacked_at_the_rate() -> Checked:
    """Section V-B: whether Theorem 2's bound falls as ``1 / sqrt(T)`` with a step size of that order, U fixed."""
    cosine, bounds = 0.8, {}
    for c in (1 / (1 + cosine), 0.5):  # w / (w - x), and the paper's
        rounds = _alike(0.5, cosine, c)
        steps = {count: UNIT._replace(step_size=0.05 / math.sqrt(count)) for count in (1e4, 1e8)}
        bounds[c] = [byzantine_bound(one, rounds, count, byzantine_rate(one, rounds)) for count, one in steps.items()]
    found = ", ".join(f"from {first:.3g} to {last:.3g} with c = {c:.2f}" for c, (first, last) in bounds.items())
    held = all(last < SHRUNK * first for first, last in bounds.values())
    return Checked(held, f"{found}, from 10^4 to 10^8 rounds; w / (w - x) is 0.56")


def every_share() -> Checked:
    """Section V-B: whether Theorem 2 has a bound for any share of malicious clients below 1; all flip the sign."""
    rounds = {w: _alike(w, 0.5, 1 / 1.5) for w in (0.1, 0.5, 0.9, 0.99)}
    steps = {w: UNIT._replace(step_size=oracle_step(UNIT, one)) for w, one in rounds.items()}
    sizes = ", ".join(f"{one.step_size:.1g} at {w}" for w, one in steps.items())
    held = all(oracle_rate(steps[w], one) > 0 for w, one in rounds.items())
    return Checked(held, f"chi is positive; the step size falls, {sizes}, and is 0 at 1")


def dissimilarity() -> Checked:
    """Lemma 1 of ClusterGuardFL: whether one constant U bounds the clients' gradients by the global one.

    [reading] Its sums over the clients are means: with plain sums the last term of its equation 2 is K times as large.
    """
    needed = {}
    for distance in (1.0, 0.1, 0.01):
        theta = _minimum() + distance * np.array([1.0, 0.0, 0.0])
        needed[distance] = math.sqrt((loops.gradients(theta) ** 2).sum(1).mean() / loops.squared_gradient(theta))
    found = ", ".join(f"{least:.1f} at {distance}" for distance, least in needed.items())
    return Checked(max(needed.values()) < 2 * needed[1.0], f"U must be {found} from the minimum")


def one_round() -> Checked:
    """Lemma 2 of ClusterGuardFL, on random steps: whether it bounds the change of the loss."""
    rng, smooth, held, least = np.random.default_rng(0), float(loops.CURVATURES.mean()), 0, math.inf
    for _ in range(DRAWS):
        theta, noise = rng.normal(size=(2, 3)) * 3
        step, share, young = rng.uniform(0.01, 2), rng.uniform(0.1, 1), rng.integers(1, 4)
        gradient = loops.gradients(theta).mean(0)
        after = theta - step * (gradient / share + noise)
        risen = smooth * (((after - _minimum()) ** 2).sum() - ((theta - _minimum()) ** 2).sum()) / 2
        both, long, short = 1 / young + smooth, np.linalg.norm(gradient), np.linalg.norm(noise)
        first = young / 2 + both * step**2 / (2 * share**2)
        held += int(risen <= first * long**2 + both * step**2 * (long * short / share + short**2 / 2))
        least = min(least, first)
    found = f"holds in {held} of {DRAWS} random steps; A_1 is at least {least:.1f}, so the loss may rise"
    return Checked(held == DRAWS, found)


def many_rounds() -> Checked:
    """Lemma 3 of ClusterGuardFL: whether the loss is bounded after five rounds of full steps without noise.

    Its proof puts ``2 mu (L - L*)`` in place of ``||grad L||^2``, which is the larger by Assumption 4. All clients have
    the same loss here, so U = 1; q_c = 1 and gamma = 1.
    """
    steep, flat, step, rounds = 1.0, 0.01, 3.0, 5
    theta = np.array([1.0, 0.0]) * np.array([1 - step * steep, 1 - step * flat]) ** rounds
    allowed = 1 + 2 * flat * (0.5 + step**2)
    risen = float(theta[0] ** 2)
    return Checked(risen <= allowed, f"with a step size of 3 / M it grows {risen:.0f} times; allowed {allowed:.2f}")


def _minimum() -> np.ndarray:
    return (loops.CURVATURES * loops.MINIMA).sum(0) / loops.CURVATURES.sum()


def moving_average() -> Checked:
    """Lemma 1 of TACO: whether ``Delta_(t+1)`` is ``Delta~_t + (1 - alpha_t) Delta_t``."""
    left = {}
    for name, gamma, tailored in (("gamma = 1 and equal weights", 1.0, False), ("its gamma and weights", 0.2, True)):
        rounds = list(loops.taco(20, gamma, tailored))
        residuals = np.array([one.after - one.plain - (1 - one.alpha) * one.before for one in rounds])
        aggregates = np.array([one.after for one in rounds])
        left[name] = float((np.linalg.norm(residuals, axis=1) / np.linalg.norm(aggregates, axis=1)).max())
    found = ", ".join(f"{100 * share:.0f} % with {name}" for name, share in left.items())
    return Checked(max(left.values()) < 1e-9, f"the residual is up to {found}")


def final_output() -> Checked:
    """Lemma 2 of TACO: whether ``z_(t+1)`` is ``z_t - eta_g Delta~_t``, where Lemma 1 holds."""
    step = 0.3
    rounds = list(loops.taco(20, 1.0, tailored=False, server_step=step))[1:]
    residuals = np.array([one.next_z - one.z + step * one.plain for one in rounds])
    named = np.array([-step * (1 - one.next_alpha) * one.after for one in rounds])
    name = "is" if np.allclose(residuals, named, atol=1e-12) else "is not"
    found = f"the residual {name} - eta_g (1 - alpha_(t+1)) Delta_(t+1), up to {np.abs(residuals).max():.2f} here"
    return Checked(bool(np.abs(residuals).max() < 1e-9), found)


def taco_at_the_rate() -> Checked:
    """Corollary 1 of TACO: whether the mean squared gradient goes to 0 with T, for the best of some ``eta_g``.

    Its proof drops the drift ``epsilon_t`` of Theorem 1, and has the clients' mean where TACO weighs them by alpha.
    """
    texts, left = [], []
    for name, tailored in (("its weights", True), ("equal weights", False)):
        means = {}
        for rounds in (100, 1000):
            runs = (
                [loops.squared_gradient(one.z) for one in loops.taco(rounds, 0.2, tailored, server_step=step)]
                for step in (0.2, 0.5)
            )
            means[rounds] = min(float(np.mean(run[-rounds // 2 :])) for run in runs)
        left.append(means[1000] / means[100])
        texts.append(f"{means[100]:.1g} to {means[1000]:.1g} with {name}")  # digits that machines share
    return Checked(max(left) < 0.5, f"from 100 to 1,000 rounds at a fixed eta_l: {', '.join(texts)}")


def order_of_coefficients() -> Checked:
    """Corollary 2 of TACO: whether the order of the coefficients changes the term that it is to minimize."""
    alpha, ratios = np.array([0.1, 0.2, 0.4, 0.8]), np.array([4.0, 3.0, 2.0, 1.0])
    own, other = over_correction(alpha, ratios), over_correction(alpha[::-1], ratios)
    return Checked(own < other, f"{own:.1f} in its order, {other:.1f} reversed: only the sum of the alpha_i counts")
