"""Rules of one line: what their formulas promise, worked by hand where that is possible."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.aggregators import (
    br_drag,
    centered_clipping,
    fedexp,
    fltrust,
    monna,
    norm_clipping,
    root_only,
)

PARAMS = {"w": jnp.zeros(3)}
ROOT = {"w": jnp.array([1.0, -2.0, 0.5])}
G = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 4], [3, 4, 0]], np.float32)


def jitted(rule):
    """``(deltas [4, 3], state) -> (update [3], state)``; everybody is there unless told otherwise."""
    apply = jax.jit(rule.apply)

    def update(deltas, state=None, valid=(True,) * 4):
        state = rule.init(PARAMS) if state is None else state
        deltas = {"w": jnp.asarray(deltas, jnp.float32)}
        moved, after = apply(PARAMS, deltas, state, valid=jnp.asarray(valid), root_delta=ROOT)
        return np.asarray(moved["w"], np.float64), after

    return update


EXP = jitted(fedexp(eps=1e-3))
CLIP = jitted(norm_clipping(max_norm=2.0))
CENTER = jitted(centered_clipping(radius=2.0))
CENTER_TWICE = jitted(centered_clipping(radius=2.0, iterations=2))


def test_fedexp_extrapolates_where_deltas_disagree():
    opposed = np.array([[1, 2, 0], [1, -2, 0], [1, 0, 2], [1, 0, -2]])
    update, state = EXP(opposed)
    expected = 20 / (2 * 4 * (1 + 1e-3))
    assert state.metrics["server_step_size"] == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(update, [expected, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(state.metrics["weight"], expected / 4, rtol=1e-6)


def test_fedexp_never_steps_shorter_than_the_mean():
    update, state = EXP(np.tile(G[3], (4, 1)))
    assert state.metrics["server_step_size"] == 1
    np.testing.assert_allclose(update, G[3], rtol=1e-6)


def test_fedexp_counts_those_who_are_there():
    _, state = EXP([[1, 1, 0], [1, -1, 0], [9, 9, 9], [-5, 0, np.nan]], valid=(True, True, False, True))
    assert state.metrics["server_step_size"] == 1
    _, state = EXP([[0.1, 1, 0], [0.1, -1, 0], [9, 9, 9], [-5, 0, np.nan]], valid=(True, True, False, True))
    assert state.metrics["server_step_size"] == pytest.approx(2.02 / (4 * (0.01 + 1e-3)), rel=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [1e-30, 1e12, 1e30, 1e31])
def test_fedexp_stays_finite_where_squares_do_not(length):
    opposed = length * np.array([[1, 0.5, 0], [1, -0.5, 0], [1, 0, 0.5], [1, 0, -0.5]])
    update, _ = EXP(opposed)
    np.testing.assert_allclose(update, [length, 0, 0], rtol=1e-5)
    update, state = EXP(opposed - np.array([length, 0, 0]))  # the average vanishes, the lengths do not
    assert np.isfinite(state.metrics["server_step_size"])
    assert np.isfinite(update).all()
    update, _ = EXP(length * np.array([[1, 0, 0], [-1, 0, 0], [0, 0, 0], [1e-8, 0, 0]]))
    assert np.isfinite(update).all()


def test_root_only_is_deaf_to_clients():
    update = jitted(root_only())
    for deltas in (G, 1e6 * G, -G):
        moved, state = update(deltas)
        np.testing.assert_array_equal(moved, ROOT["w"])
        assert not state.metrics["weight"].any()
    expected = -(G @ np.asarray(ROOT["w"])) / np.linalg.norm(G, axis=1) / np.linalg.norm(ROOT["w"])
    np.testing.assert_allclose(state.metrics["cosine"], expected, rtol=1e-5)


def test_norm_clipping_shortens_only_the_long():
    update, state = CLIP(G)
    np.testing.assert_allclose(state.metrics["scale"], [1, 1, 0.5, 0.4], rtol=1e-6)
    np.testing.assert_allclose(update, np.array([1 + 1.2, 2 + 1.6, 2]) / 4, rtol=1e-6)
    np.testing.assert_allclose(state.metrics["weight"] @ G, update, rtol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [10.0, 1e30])
def test_clipping_bounds_what_one_client_can_do(length):
    """By 2 C / S, against its being replaced by any other."""
    direction = np.array([-0.6, 0, -0.8])
    for rule in (CLIP, CENTER):
        honest, _ = rule(G)
        attacked, _ = rule(np.stack([G[0], G[1], G[2], length * direction]))
        assert np.linalg.norm(attacked - honest) <= 2 * 2.0 / 4 + 1e-6


def test_centered_clipping_by_hand():
    """From zero it is norm clipping; then the last aggregate is the centre."""
    first, state = CENTER(G)
    np.testing.assert_allclose(first, CLIP(G)[0], rtol=1e-6)
    np.testing.assert_allclose(state.center["w"], first, rtol=1e-6)
    second, after = CENTER(G, state)
    apart = np.linalg.norm(G - first, axis=1)
    scale = np.minimum(1, 2 / apart)
    expected = first + (scale[:, None] * (G - first)).mean(0)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    np.testing.assert_allclose(after.metrics["scale"], scale, rtol=1e-5)
    weight = np.asarray(after.metrics["weight"], np.float64)
    np.testing.assert_allclose(weight @ G + (1 - weight.sum()) * first, second, rtol=1e-5)


def test_iterations_of_centered_clipping_are_rounds_on_the_same_deltas():
    once, state = CENTER(G)
    again, _ = CENTER(G, state)
    twice, after = CENTER_TWICE(G)
    np.testing.assert_allclose(twice, again, rtol=1e-6)
    weight = np.asarray(after.metrics["weight"], np.float64)
    np.testing.assert_allclose(weight @ G, twice, rtol=1e-5)  # it began at zero: all lies on the deltas
    assert not np.allclose(once, again)


def test_centered_clipping_reaches_honest_deltas_that_are_far_away():
    """Half a radius of spread around a point ten radii off: within the radius after as many rounds and one."""
    offsets = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    state, steps = None, []
    for _ in range(12):
        update, state = CENTER(np.array([20.0, 0, 0]) + offsets, state)
        steps.append(update)
    lengths = np.linalg.norm(np.diff([np.zeros(3), *steps], axis=0), axis=1)
    assert lengths.max() <= 2 + 1e-5
    np.testing.assert_allclose(steps[-1], [20, 0, 0], rtol=1e-5, atol=1e-5)


def test_center_is_kept_in_float32():
    """In bfloat16 a slow drift of it would be rounded away."""
    rule = centered_clipping(radius=1.0)
    params = {"w": jnp.zeros(3, jnp.bfloat16)}
    after, state = jax.eval_shape(rule.apply, params, {"w": jnp.asarray(G, jnp.bfloat16)}, rule.init(params))
    assert after["w"].dtype == jnp.bfloat16
    assert state.center["w"].dtype == rule.init(params).center["w"].dtype == jnp.float32


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rule",
    [fedexp(), norm_clipping(2.0), centered_clipping(2.0, 2), root_only()],
    ids=lambda rule: rule.init.__qualname__,
)
def test_gradient_through_the_rule_is_finite(rule):
    """Also at a client of delta zero."""

    def length(deltas):
        moved, _ = rule.apply(PARAMS, {"w": deltas}, rule.init(PARAMS), root_delta=ROOT)
        return (moved["w"] ** 2).sum()

    gradient = jax.jit(jax.grad(length))
    for deltas in (G, np.vstack([0 * G[:1], G[1:]])):
        assert np.isfinite(gradient(jnp.asarray(deltas))).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fedexp(eps=0.0), "eps=0.0: must be in"),
        (lambda: norm_clipping(max_norm=-1.0), "max_norm=-1.0: must be in"),
        (lambda: centered_clipping(radius=0.0), "radius=0.0: must be in"),
        (lambda: centered_clipping(radius=1.0, iterations=0), "iterations=0: must be an integer >= 1"),
        (lambda: centered_clipping(radius=1.0, iterations=1.5), "iterations=1.5: must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message):
    with pytest.raises(ValueError) as caught:
        build()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", [br_drag(), fltrust(), fltrust(projection=True), monna(1), root_only()], ids=repr)
def test_a_root_delta_is_like_the_parameters(rule):
    """Transposed it has the norm of the right one, and would be taken without a word."""
    params = {"w": jnp.zeros((3, 2))}
    with pytest.raises(ValueError, match=r"^root_delta\['w'\] with shape \(2, 3\): must be \(3, 2\)"):
        rule.apply(params, {"w": jnp.ones((4, 3, 2))}, rule.init(params), root_delta={"w": jnp.ones((2, 3))})
