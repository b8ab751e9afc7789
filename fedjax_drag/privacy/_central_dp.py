"""Client-level differential privacy by noise that the server adds."""

from fedjax_drag.privacy._noised_mean import NoisedMean


class central_dp(NoisedMean):
    """Clips every delta, and adds noise to their sum once, at the server, before another rule sees it.

    ::

        mean = (sum_m min(1, C / ||g_m||) g_m + N(0, (z C)^2 I)) / S;   theta = rule(mean)

    One client changes the sum by at most ``C``, whatever it sends: a message that is not finite counts as 0. The
    divisor is the number of clients expected in a round, which no client's message or absence changes, and the noise is
    added whether anybody answers or not. In a round in which nobody is expected, all stays as it was. What
    ``aggregator`` makes of the mean, such as the moments of a server optimizer, is post-processing.

    Args:
      aggregator: a rule that depends on the plain mean alone: :func:`~fedjax_drag.aggregators.fedavg` with uniform
        weights and any server optimizer, or :func:`~fedjax_drag.aggregators.crfl`. Others are refused. DRAG and the
        rules that pick or reorder clients depend on single messages in ways that the clip of the deltas does not bound:
        run them under :func:`~fedjax_drag.privacy.local_dp`.
      clip: ``C``, the greatest length of a delta, > 0.
      noise_multiplier: ``z``, >= 0; :func:`~fedjax_drag.privacy.accountant.noise_multiplier_for` finds one.
      delta: at which the history reports ``epsilon``, the privacy spent so far; default not at all. It takes
        ``dp-accounting`` (``pip install 'fedjax-drag[privacy]'``).
      noise_cohort_size: the cohort that is meant, at least that of the run, where a large one is simulated by a small
        one: the mean then has the noise of the large one, ``z C / noise_cohort_size``, and ``epsilon`` is the large
        one's. Such a run is no private training of its own clients. Default the run's cohort.
      population: clients of the deployment from which cohorts are drawn by Poisson sampling; default those of the run,
        drawn as the run draws them.

    Notes:
      It also takes deltas in chunks and needs ``key``. Metrics: ``scale``
      (``min(1, C / ||g_m||)``), ``weight`` ``scale / S``; from the whole stack also ``cosine`` to the sum
      without noise. These, as all metrics of a simulation but ``epsilon``, are not private. Where no client counts it
      moves by noise.
      ``reject_nonfinite`` has no effect.

    Raises:
      ValueError: if a number is out of range, or ``aggregator`` is not a plain mean.

    Breakdown point:
      bounded whoever is malicious: f clients shift the step by at most 2 f / S x clip

    Cost:
      3 passes over the deltas, and d normal draws

    References:
      McMahan et al., Learning differentially private recurrent language models, 2018, Algorithm 1 with the fixed
      denominator; Dwork and Roth, The algorithmic foundations of differential privacy, 2014, Proposition 2.1
      (post-processing). The simulation of large cohorts is that of pfl-research.
    """
