"""Attacks aimed at rules once more, in NumPy float64, written from their papers.

``G`` ``[n, D]`` are the deltas that the attacker knows, one a row.
"""

from collections.abc import Callable

import numpy as np
from reference.numpy_robust import krum_scores

HALVINGS = 17


def krum_chooses(G: np.ndarray, forged: np.ndarray, copies: int) -> bool:
    """Whether Krum with f = copies prefers the forged deltas to each of ``G``."""
    rows = np.concatenate([np.tile(forged, (copies, 1)), G])
    scores = krum_scores(rows, min(max(len(rows) - copies - 2, 1), len(rows) - 1))
    return scores[0] < scores[copies:].min()


def krum_bound(G: np.ndarray, copies: int) -> float:
    """Theorem 1's upper bound on lambda for m clients of which c are forged."""
    m, c, d = len(G) + copies, copies, np.count_nonzero(G.mean(axis=0))
    smallest = krum_scores(G, min(max(m - c - 2, 1), len(G) - 1)).min()
    return np.sqrt(smallest / (max(m - 2 * c - 1, 1) * d)) + np.linalg.norm(G, axis=1).max() / np.sqrt(d)


def krum_lambda(G: np.ndarray, counts: range) -> tuple[float, bool]:
    """The lambda, and whether Krum chooses it beside as many copies as some of ``counts``."""
    direction = np.sign(G.mean(axis=0))
    ladder = np.zeros(0)
    for copies in counts:
        ladder = krum_bound(G, copies) * 0.5 ** np.arange(HALVINGS + 1)
        for size in ladder:
            if krum_chooses(G, -size * direction, copies):
                return size, True
    return ladder[-1], False


def trim_intervals(G: np.ndarray, b: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of what is sent in each coordinate, with full knowledge."""
    ends = []
    for values in G.T:
        largest, smallest = values.max(), values.min()
        if values.mean() > 0:
            ends.append((smallest / b, smallest) if smallest > 0 else (b * smallest, smallest))
        else:
            ends.append((largest, b * largest) if largest > 0 else (largest, largest / b))
    return np.array(ends).T[0], np.array(ends).T[1]


def trim_guesses(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with partial knowledge."""
    mean, std = G.mean(axis=0), G.std(axis=0)
    return np.where(mean > 0, mean - 4 * std, mean + 3 * std), np.where(mean > 0, mean - 3 * std, mean + 4 * std)


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v) if v.any() else v


def reach(G: np.ndarray) -> float:
    """How far the farthest row is from the mean."""
    return np.linalg.norm(G - G.mean(axis=0), axis=1).max()


def directions(G: np.ndarray) -> list[np.ndarray]:
    """Unit vectors that attacks push the mean along, and their opposites."""
    mean, std = G.mean(axis=0), G.std(axis=0)
    axes = [unit(axis) for axis in (mean, np.sign(mean), std, std * np.sign(mean))]
    return [way * axis for axis in axes for way in (-1, 1)]


def multiples(G: np.ndarray, radius: float, lengths: np.ndarray) -> list[np.ndarray]:
    """Offsets from the mean of the given lengths, in units of the radius, along every direction."""
    return [radius * length * direction for direction in directions(G) for length in lengths]


def line_searched(harm: Callable[[np.ndarray], float], G: np.ndarray, radius: float) -> np.ndarray:
    """The most harmful of what the ascent's line searches come to."""
    ends = []
    for direction in directions(G):
        along = lambda length, direction=direction: harm(radius * length * direction)
        best = max(np.arange(9) / 8, key=along)
        for step in (1 / 16, 1 / 32, 1 / 64):
            best = max(best, min(best + step, 1), key=along)
            best = max(best, max(best - step, 0), key=along)
        ends.append(radius * best * direction)
    return max(ends, key=harm)


def ascend(
    harm: Callable[[np.ndarray], float], gradient: Callable[[np.ndarray], np.ndarray], start: np.ndarray, radius: float
) -> Callable[[int], np.ndarray]:
    """Projected ascent with steps that are halved where they do not help; ``(steps) -> offset``."""

    def after(steps: int) -> np.ndarray:
        offset, length = start, radius / 2
        for _ in range(steps):
            ahead = offset + length * unit(gradient(offset))
            ahead = ahead * min(1.0, radius / np.linalg.norm(ahead))
            if harm(ahead) > harm(offset):
                offset = ahead
            else:
                length /= 2
        return offset

    return after


def strongest(
    harm: Callable[[float], float], starts: tuple[float, ...], evaluations: int, step: float, ratio: float
) -> tuple[float, list[float]]:
    """What the line search of ByzFL's optimal attacks comes to, and all strengths that it tries."""
    best, tried, expands = max(starts, key=harm), list(starts), True
    while len(tried) < evaluations:
        tried.append(best + step)
        if harm(tried[-1]) > harm(best):
            best = tried[-1]
            step *= 2 if expands else ratio
        else:
            expands = False
            step *= ratio
    return best, tried


def outside_top(delta: np.ndarray, last_update: np.ndarray, share: float) -> np.ndarray:
    """``delta`` without the coordinates of the largest absolute changes, of which ties are all left out."""
    number, size = int(np.floor(share * len(delta) + 1e-9)), abs(last_update)
    least = np.sort(size)[len(size) - number] if number else np.inf
    return np.where((size >= least) & (size > 0), 0, delta)


def trigger_part(x: np.ndarray, size: int, value: float, part: int, parts: int) -> np.ndarray:
    """Images with the rows of a square in the lower right corner that are of one of its parts."""
    x, first = x.copy(), x.shape[1] - size
    for row in range(size):
        if row * parts // size == part:
            x[:, first + row, x.shape[2] - size :] = value
    return x


def tail(x: np.ndarray, share: float) -> tuple[list[int], float]:
    """The examples of a class that are furthest from its mean, the furthest first, and the last one's distance."""
    distance = [np.sqrt(((example - x.mean(axis=0)) ** 2).sum()) for example in x]
    furthest = sorted(range(len(x)), key=lambda i: -distance[i])[: max(1, int(share * len(x) + 1e-9))]
    return furthest, distance[furthest[-1]]


def rop_sends(
    G: np.ndarray, last: np.ndarray, radius: float | None, location: float, reference: float, angle: float
) -> np.ndarray:
    """What is sent beside benign deltas ``G`` ``[n, D]`` and the last update ``[D]``."""
    m = G.mean(axis=0)
    a = location * last + (1 - location) * m
    u = reference * last + (1 - reference) * m if last.any() else m
    ones = np.ones_like(m)
    p = ones - ones @ u / (u @ u) * u
    p /= np.linalg.norm(p)
    if radius is None:
        radius = np.mean([np.linalg.norm(g - a) for g in G])
    return a + radius * (np.sin(np.radians(angle)) * p + np.cos(np.radians(angle)) * u / np.linalg.norm(u))


def poisonedfl_sends(
    updates: list[np.ndarray], s: np.ndarray, factor: float, period: int, shrink: float, least: float, threshold: int
) -> list[tuple[np.ndarray, float]]:
    """What is sent in each round beside signs ``s`` ``[D]``, and ``c_t``; one more round than there are updates.

    ``threshold`` is the smallest number of coordinates with which the model counts as following.
    """
    message, sent, c = np.zeros_like(s), [(np.zeros_like(s), factor)], factor
    for t, g in enumerate(updates, start=1):
        if t % period == 0:
            moved = np.sum(updates[t - period : t], axis=0)
            if np.sum(np.sign(moved) == s) < threshold and shrink * c >= least:
                c *= shrink
        previous = np.linalg.norm(message)
        rest = np.abs(g - (np.linalg.norm(g) / previous * message if previous else 0))
        message = c * np.linalg.norm(g) * rest / np.linalg.norm(rest) * s
        sent.append((message, c))
    return sent


def hidden(v: np.ndarray, G: np.ndarray, norm: float | None, cosine: float | None) -> np.ndarray:
    """A delta ``v`` turned towards the mean of ``G`` and shortened to ``norm`` times the mean length."""
    g = unit(G.mean(axis=0))
    if cosine is not None and v @ g < cosine * np.linalg.norm(v):
        aside = v - (v @ g) * g
        aside = unit(aside) if np.linalg.norm(aside) > 1e-9 * np.linalg.norm(v) else 0 * v
        v = np.linalg.norm(v) * (cosine * g + np.sqrt(1 - cosine**2) * aside)
    if norm is not None:
        longest = norm * np.linalg.norm(G, axis=1).mean()
        v = v * min(1.0, longest / np.linalg.norm(v))
    return v


def a3fl_trigger(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, trigger: np.ndarray, target: int, settings: dict[str, float]
) -> np.ndarray:
    """The trigger ``[s, s]`` after a round, for softmax regression ``w`` ``[pixels, C]`` on images ``[n, h, h]``."""
    size, n = len(trigger), len(x)

    def marked(d: np.ndarray) -> np.ndarray:
        images = x.copy()
        images[:, -size:, -size:] = d
        return images

    def errors(w: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Probabilities less the labels, over n: the gradient of the mean loss by the outputs."""
        outputs = images.reshape(n, -1) @ w
        p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return (p / p.sum(axis=1, keepdims=True) - np.eye(w.shape[1])[labels]) / n

    wanted = np.full(n, target)
    for _ in range(int(settings["steps"])):
        images, other = marked(trigger), w.copy()
        for _ in range(int(settings["unlearning_steps"])):
            other -= settings["unlearning_step"] * images.reshape(n, -1).T @ errors(other, images, y)
        similar = np.sum(w * other) / np.linalg.norm(w) / np.linalg.norm(other)
        slope = np.zeros(x.shape[1:])
        for model, weight in ((w, 1.0), (other, settings["weight"] * similar)):
            slope += weight * (errors(model, images, wanted) @ model.T).sum(axis=0).reshape(slope.shape)
        trigger = np.clip(
            trigger - settings["step"] * np.sign(slope[-size:, -size:]), -settings["bound"], settings["bound"]
        )
    return trigger


Gradient = Callable[[np.ndarray], np.ndarray]


def constrained_pass(
    G: np.ndarray, gradients: list[Gradient], step_size: float, alpha: float, anomaly: str
) -> np.ndarray:
    """The delta of a pass from ``G`` on ``alpha L_class + (1 - alpha) L_ano``, before it is scaled."""
    w = G.copy()
    for gradient in gradients:
        if anomaly == "distance":
            away = w - G
            pull = away / np.linalg.norm(away) if away.any() else away
        else:
            lengths = np.linalg.norm(w) * np.linalg.norm(G)
            pull = (w @ G) * w / (np.linalg.norm(w) ** 2 * lengths) - G / lengths
        w = w - step_size * (alpha * gradient(w) + (1 - alpha) * pull)
    return w - G


def alternating_pass(
    G: np.ndarray,
    steps: int,
    true: Gradient,
    poisoned: Gradient,
    last: np.ndarray,
    step_size: float,
    told: tuple[float, int, float],
) -> np.ndarray:
    """The delta of a pass from ``G`` of ``steps`` steps; ``told`` are boost, stealth steps and rho."""
    boost, stealth_steps, rho = told
    w, since = G.copy(), stealth_steps
    for _ in range(steps):
        if since == stealth_steps:
            w, since = w - boost * step_size * poisoned(w), 0
        else:
            w, since = w - step_size * (true(w) + rho * ((w - G) - last)), since + 1
    return w - G


def contrasts(z: np.ndarray, y: np.ndarray, temperature: float) -> np.ndarray:
    """The supervised contrastive loss of each example, of features ``[n, D]`` at length 1."""
    losses = []
    for i in range(len(z)):
        likeness = {a: np.exp(z[i] @ z[a] / temperature) for a in range(len(z)) if a != i}
        logs = [np.log(likeness[p] / sum(likeness.values())) for p in likeness if y[p] == y[i]]
        losses.append(-np.mean(logs) if logs else 0.0)
    return np.array(losses)
