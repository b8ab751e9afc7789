"""Traces every rule with the shapes of its signatures checked; the program of ``contracts/test_shapes.py``.

A process of its own, because the check is built into modules as they are imported.
"""

import functools

import jax
from jaxtyping import install_import_hook

MODULES = ["fedjax_drag.tree", "fedjax_drag.kernels", "fedjax_drag.ops", "fedjax_drag.aggregators"]
COHORT, LARGE = 7, 40
"""Order statistics are by a network of compare-exchanges, and by bisection."""

ORDERED = ("median", "trimmed_mean", "bulyan", "signsgd_majority")
"""Rules that ask for these, which are tried with both cohorts."""


def deltas_of(params, cohort):
    """Shapes of a cohort's deltas."""
    return jax.tree.map(lambda p: jax.ShapeDtypeStruct((cohort, *p.shape), p.dtype), params)


def main() -> None:
    """Raises an error that names function, argument and shape where one does not fit."""
    with install_import_hook(MODULES, "beartype.beartype"):
        import cases

    from fedjax_drag.ops.rules import average

    try:
        average({}, valid=jax.numpy.ones(3))  # a mask that is not boolean
    except TypeError:
        pass
    else:
        raise AssertionError("the shapes are not checked")

    params = cases.nested_params()
    rounds = [(deltas_of(params, cohort), cases.extras(cohort)) for cohort in (COHORT, LARGE)]
    for case in cases.AGGREGATORS:
        rule = case.build(**{"num_clients": 40} if "num_clients" in case.settings else {})
        state = rule.init(params)
        for deltas, extras in rounds if case.label in ORDERED else rounds[:1]:
            jax.eval_shape(functools.partial(rule.apply, **extras), params, deltas, state)
            if rule.streamed:
                total, kept = jax.eval_shape(
                    functools.partial(rule.streamed.accumulate, **extras), params, deltas, state
                )
                jax.eval_shape(functools.partial(rule.streamed.finish, **extras), params, total, state, kept)
        print(case.label)


if __name__ == "__main__":
    main()
