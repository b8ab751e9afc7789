"""Traces every rule with the shapes of its signatures checked; the program of ``contracts/test_shapes.py``.

A process of its own, because the check is built into modules as they are imported.
"""

import functools

import jax
from jaxtyping import install_import_hook

MODULES = ["fedjax_drag.tree", "fedjax_drag.ops", "fedjax_drag.aggregators"]
COHORTS = (7, 40)  # order statistics by a network of compare-exchanges, and by bisection


def main() -> None:
    """Raises an error that names function, argument and shape where one does not fit."""
    with install_import_hook(MODULES, "beartype.beartype"):
        import cases

    from fedjax_drag.ops.sums import average

    try:
        average({}, valid=jax.numpy.ones(3))  # a mask that is not boolean
    except TypeError:
        pass
    else:
        raise AssertionError("the shapes are not checked")

    params = cases.nested_params()
    for case in cases.AGGREGATORS:
        rule = case.build(**{"num_clients": 40} if "num_clients" in case.settings else {})
        for cohort in COHORTS:
            deltas = jax.tree.map(lambda p, cohort=cohort: jax.numpy.zeros((cohort, *p.shape)), params)
            state, extras = rule.init(params), cases.extras(cohort)
            jax.eval_shape(functools.partial(rule.apply, **extras), params, deltas, state)
            if rule.streamed:
                total, kept = jax.eval_shape(
                    functools.partial(rule.streamed.accumulate, **extras), params, deltas, state
                )
                jax.eval_shape(functools.partial(rule.streamed.finish, **extras), params, total, state, kept)
        print(case.label)


if __name__ == "__main__":
    main()
