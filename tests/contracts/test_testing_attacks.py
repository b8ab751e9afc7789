"""The check that users run on attacks of their own: it accepts those of the package and names what another breaks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ATTACKS, parametrize

from fedjax_drag import attacks, tree
from fedjax_drag.testing import check_attack
from fedjax_drag.types import Attack


@parametrize(ATTACKS, slow=lambda case: case.label == "optimised", fast=lambda case: case.label == "sign_flip")
@pytest.mark.slow
def test_every_attack_of_the_package_passes(case):
    check_attack(case.build())


def forging(function, **fields):
    """An attack whose malicious clients send ``function`` of a leaf ``[S, *p]`` and of the mask."""

    def forge(key, uplink, malicious, **_):
        return jax.tree.map(lambda x: function(x, tree.expand(malicious, x)), uplink)

    return Attack(forge=forge, **fields)


def test_an_attack_of_ones_own_passes():
    check_attack(forging(lambda x, mask: jnp.where(mask, -2 * x, x)))


class Misled(Attack):
    """An attack on the steps alone: on the loss or on the gradient."""

    change: Any = jnp.negative

    def loss(self, losses, examined, batch, **_):
        return self.change(losses)


class Ascent(Attack):
    def gradient(self, gradient, w, start, **_):
        return jax.tree.map(jnp.negative, gradient)


def test_an_attack_on_losses_or_gradients_alone_passes():
    check_attack(Misled())
    check_attack(Ascent())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (jnp.mean, r"finite number for each example: loss returns \(\) float32: must be \(6,\) float32"),
        (lambda losses: jnp.log(-losses), "finite number for each example: loss is not finite"),
        (lambda losses: losses * np.random.default_rng().uniform(), "random ones must come from key"),
    ],
    ids=["shape", "not finite", "impure"],
)
def test_what_a_loss_breaks_is_named(change, message):
    with pytest.raises(AssertionError, match=message):
        check_attack(Misled(change))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (forging(lambda x, mask: -x), "What benign clients send comes back bit for bit: forge changes delta"),
        (forging(lambda x, mask: jnp.where(mask, -x, x * 1.0000001)), "forge changes delta"),
        (
            forging(lambda x, mask: jnp.where(mask, -x, x)[:1]),
            r"keep structure.*forge returns delta\['bias'\] with \(1, 2\)",
        ),
        (
            forging(lambda x, mask: jnp.where(mask, -x, x), needs=frozenset({"weather"})),
            r"needs=\['weather'\]: must be among",
        ),
        (
            forging(lambda x, mask: jnp.where(mask, (jnp.where(mask, 0, x)).sum(0) / (~mask).sum(), x)),
            r"If all clients are malicious.*delta\['bias'\] is not finite",
        ),
        (
            forging(lambda x, mask: jnp.where(mask, np.random.default_rng().normal(size=x.shape), x)),
            "random ones must come from key",
        ),
        (Attack(), "neither forge nor poison"),
        (Attack(forge=lambda key, uplink, malicious, *, client_ids: uplink), "unexpected keyword argument 'round'"),
        (Attack(poison=lambda key, batch, **_: batch._replace(y=batch.y + 5)), "poison gives labels from"),
        (Attack(poison=attacks.label_flip().poison, active=lambda t: t), r"Active says.*active returns int32\[\]"),
        (
            Attack(poison=attacks.backdoor(target=1).poison, goal=lambda x, y, num_classes: (x[..., 0], y)),
            r"goal returns \[0\] with \(6, 8, 8\)",
        ),
    ],
    ids=[
        "all rows",
        "nearly",
        "shape",
        "needs",
        "no benign",
        "impure",
        "nothing",
        "keywords",
        "labels",
        "rounds",
        "goal",
    ],
)
def test_what_an_attack_breaks_is_named(attack, message):
    with pytest.raises(AssertionError, match=message):
        check_attack(attack)
