"""Claims of Liu et al. (TACO, Sections III to V).

TACO is judged by the accuracy of its parameters ``w``, as the other methods are. Its Algorithm 2 ends with another
model, ``z_T`` of equation 15; the paper does not say of which its accuracies are.
"""

import functools

from reproduction.judging.claims import Claim, method
from reproduction.judging.freeloaders import detected, fewer_by_larger_thresholds, ordered, rates_text, separated
from reproduction.judging.questions import (
    ahead,
    converges,
    costlier,
    every,
    first_to,
    highest,
    quicker,
    rising,
    steadier,
)
from reproduction.names import percent
from reproduction.targets.target import TACO

KEPT = "TACO, nobody expelled"
"""Label of TACO without expulsions: the paper's runs expel no honest client, ours expel some."""

LEMMA = "TACO (gamma=1), nobody expelled"
"""Label of TACO as its Lemma 1 has it: with gamma = 1, or with sums of gradients and 1/K."""

VARIANTS = ("TACO", KEPT, LEMMA, "correction alone (gamma=1)")
"""Labels of TACO in its readings, which are not compared with each other."""

OTHERS = ("FedAvg", "FedProx", "FoolsGold", "SCAFFOLD", "STEM", "FedACG")
"""The methods with which the paper compares TACO."""

ADULT, FMNIST = "taco004_table5_adult", "taco004_table5_fmnist"
ABSENT = "not run: {} is not at hand"
LONG = "not run: K=1,000 local steps of 20 clients for 200 rounds take days on two CPU cores"

_claim = functools.partial(Claim, TACO)


def _not_run(place: str, text: str, theirs: str, reason: str) -> Claim:
    return Claim(TACO, place, text, theirs, reason=reason)


def _accuracy(column: str, target: str, accuracy: float, theirs: str, rounds: str) -> list[Claim]:
    """A column of Table V, for TACO in its three readings."""
    claims = []
    for label in ("TACO", KEPT, LEMMA):
        best, soonest = highest("method", label, {}, VARIANTS), first_to("method", label, accuracy, {}, VARIANTS)
        claims += [
            _claim("Table V", f"{label} ends highest, {column}", theirs, target, best),
            _claim("Table V", f"{label} reaches {percent(accuracy, 0)} first, {column}", rounds, target, soonest),
        ]
    return claims


def _over_correction() -> list[Claim]:
    """Fig. 2: the accuracy of methods with a uniform correction, and the time of STEM's clients."""
    others = [ahead(method("FedAvg"), method(label)) for label in ("FedProx", "SCAFFOLD", "FedACG")]
    text = "FedProx, SCAFFOLD and FedACG do not outperform FedAvg, FMNIST"
    stem = ahead(method("STEM"), method("FedAvg"))
    unsteady = [steadier(method("FedAvg"), method(label)) for label in ("FedProx", "SCAFFOLD")]
    in_time = quicker("FedAvg", "STEM", 0.7, 1.0)
    return [
        _claim("Fig. 2(a)", text, "67.1, 68.8, 70.9 against 71.4 %", FMNIST, every(*others)),
        _claim("Fig. 2(a)", "STEM outperforms FedAvg, FMNIST", "73.0 against 71.4 %", FMNIST, stem),
        _claim("Fig. 2(a)", "FedAvg is steadier than FedProx and SCAFFOLD, FMNIST", "", FMNIST, every(*unsteady)),
        _claim("Fig. 2(c)", "FedAvg needs no more client time than STEM, FMNIST", "", FMNIST, in_time),
    ]


def _client_time() -> list[Claim]:
    """Figs. 4 and 5, Tables I and III: the time of the clients."""
    claims = []
    for target, data, accuracy in ((ADULT, "adult", 0.78), (FMNIST, "FMNIST", 0.7)):
        text = f"{KEPT}, needs 25.6 to 62.7 % less client time than FedAvg, {data}"
        claims.append(_claim("Fig. 4", text, "0.37 to 0.74", target, quicker(KEPT, "FedAvg", accuracy, 1 - 0.256)))
        least = every(*(quicker(KEPT, label, accuracy, 1.0) for label in OTHERS))
        claims.append(_claim("Fig. 4", f"{KEPT}, needs the least client time of all, {data}", "", target, least))
    for label, times in (("FedProx", 1.24), ("SCAFFOLD", 1.08), ("STEM", 1.41), ("FedACG", 1.24)):
        text = f"a round of {label}'s clients takes longer than one of FedAvg's (by 3 % and more), FMNIST"
        question = costlier(label, "FedAvg", 1.03)
        claims.append(_claim("Table I", text, f"{times:.2f} times", FMNIST, question))
    foolsgold = costlier("FoolsGold", "FedAvg", 0.0, 1.03)
    text = "a round of TACO's clients takes at most 7 % longer than one of FedAvg's, FMNIST for CIFAR-100"
    other = "Fashion-MNIST and LeNet for CIFAR-100 and ResNet18"
    corrected = ("FedProx", "SCAFFOLD", "STEM", "FedACG")
    longer = every(*(costlier(label, "FedAvg", 1.03) for label in corrected))
    names = f"{', '.join(corrected[:-1])} and {corrected[-1]}"
    all_longer = f"a round of the clients of {names} takes longer than one of FedAvg's (by 3 % and more), adult"
    return [
        *claims,
        _claim("Table I", "a round of FoolsGold's clients does not (by at most 3 %)", "1.00 times", FMNIST, foolsgold),
        _claim("Fig. 5(a)", all_longer, "", ADULT, longer),
        _claim("Table III", text, "1.07 times", FMNIST, costlier(KEPT, "FedAvg", 0.0, 1.07), instead=other),
    ]


def _coefficients() -> list[Claim]:
    """Table II."""
    alphas = {
        "mnist": ("MNIST", "0.23, 0.27, 0.41, 0.88"),
        "fashion_mnist": ("FMNIST", "0.18, 0.27, 0.37, 0.75"),
        "cifar10": ("CIFAR-10", "0.22, 0.32, 0.36, 0.88"),
    }
    place, target = "Table II", "taco004_table2"
    claims = []
    for data, (name, theirs) in alphas.items():
        growing = f"alpha grows with the labels of a client and is largest for freeloaders, {name}"
        between = f"kappa=0.6 lies between honest clients and freeloaders, {name}"
        claims += [
            _claim(place, growing, theirs, target, ordered({"data": data})),
            _claim(place, between, "", target, separated({"data": data}, 0.6)),
        ]
    return [*claims, _not_run(place, "the same on SVHN", "0.23, 0.33, 0.43, 0.86", ABSENT.format("SVHN"))]


def _expulsions() -> list[Claim]:
    """Table VIII.

    A share of 6.25 % in the table is none of the 12 honest clients of Section V-A, and so of the configuration, in one
    run; it may be a mean over runs, of which the paper does not say.
    """
    no_share = " (not all are shares of Section V-A's 12 honest clients in one run)"
    everyone, nobody = [(1.0, 0.0)] * 3, [(0.0, 0.0)] * 3
    rows = {
        0.4: [(1.0, 0.25), (1.0, 0.125), (1.0, 0.0)],
        0.5: [(1.0, 0.0625), (1.0, 0.0), (1.0, 0.0)],
        **dict.fromkeys((0.6, 0.7, 0.8), everyone),
        0.9: [(1.0, 0.0), (1.0, 0.0), (0.0, 0.0)],
        1.0: nobody,
    }
    trend = "a larger kappa, and more strikes, expel no more freeloaders and no more honest clients"
    return [
        _claim("Table VIII", trend, "", "taco004_table8", fewer_by_larger_thresholds),
        *(
            _claim(
                "Table VIII",
                f"freeloaders/honest clients expelled with kappa={kappa} after T/10, T/5, T/2 strikes",
                rates_text(theirs) + (no_share if any(fpr for _, fpr in theirs) else ""),
                "taco004_table8",
                detected(kappa, theirs),
            )
            for kappa, theirs in rows.items()
        ),
    ]


def _ablation() -> list[Claim]:
    """Table VI."""
    columns = (
        ("taco004_table6_adult", "adult", 0.1, "78.4, 79.8, 83.5, 83.6 %"),
        ("taco004_table6_adult", "adult", 0.5, "78.9, 83.3, 83.7, 83.8 %"),
        ("taco004_table6_emnist", "EMNIST for FEMNIST", 0.2, "90.0, 91.3, 95.2, 95.2 %"),
        ("taco004_table6_emnist", "EMNIST for FEMNIST", 0.5, "92.9, 93.2, 95.9, 96.1 %"),
    )
    order = ("neither", "aggregation", "correction", "both")
    return [
        _claim(
            "Table VI",
            f"tailored aggregation helps, tailored correction more, both most, {data} Dirichlet({beta})",
            theirs,
            target,
            rising("method", order, {"partition.beta": beta}),
        )
        for target, data, beta, theirs in columns
    ]


def _many_clients() -> list[Claim]:
    """Table VII."""
    place, target = "Table VII", "taco004_table7_adult"
    theirs = {
        "adult": "83.7 %, FedACG 83.5 %",
        "FEMNIST": "92.9 %, SCAFFOLD 92.3 %",
        "CIFAR-100": "53.7 %, SCAFFOLD 49.8 %",
    }
    taco, kept = (highest("method", label, {}, VARIANTS) for label in ("TACO", KEPT))
    return [
        _claim(place, "TACO ends highest with 100 clients, adult", theirs["adult"], target, taco),
        _claim(place, f"{KEPT}, ends highest with 100 clients, adult", theirs["adult"], target, kept),
        *(
            _not_run(place, f"TACO ends highest with 100 clients, {name}", theirs[name], ABSENT.format(name))
            for name in ("FEMNIST", "CIFAR-100")
        ),
    ]


def _tailored_baselines() -> list[Claim]:
    """Fig. 6."""
    settings = (("a", "FedProx", "fashion_mnist", "FMNIST for SVHN"), ("b", "Scaffold", "cifar10", "CIFAR-10"))
    claims = []
    for panel, label, data, name in settings:
        gain = ahead(method(f"{label} (TACO)", data=data), method(label, data=data))
        text = f"{label} gains by TACO's coefficients, {name}"
        claims.append(_claim(f"Fig. 6({panel})", text, "", "taco004_fig6", gain))
    return claims


def _gamma() -> list[Claim]:
    """Fig. 7."""
    claims = []
    for data, name in (("mnist", "MNIST"), ("fashion_mnist", "FMNIST"), ("cifar10", "CIFAR-10")):
        upwards = rising("algorithm.gamma", (0.0, 0.001, 0.01), {"data": data})
        failure = converges({"data": data, "algorithm.gamma": 1.0}, 0.1, wanted=False)
        best = highest("algorithm.gamma", 0.01, {"data": data})
        better = f"up to gamma=1/K a larger one is better, {name}"
        claims += [
            _claim("Fig. 7", better, "", "taco004_fig7_gamma", upwards),
            _claim("Fig. 7", f"gamma=1 fails to converge, {name}", "", "taco004_fig7_gamma", failure),
            _claim("Fig. 7", f"gamma=1/K ends highest of the five, {name}", "about 1/K", "taco004_fig7_gamma", best),
        ]
    return claims


CLAIMS = (
    *_accuracy("adult", ADULT, 0.78, "83.8 %, FedACG 83.7 %", "round 8, SCAFFOLD 10"),
    *_accuracy("FMNIST", FMNIST, 0.7, "73.3 %, FoolsGold 73.1 %", "round 59, STEM 69"),
    _not_run("Table V", "TACO ends highest, SVHN", "78.3 %, FoolsGold 76.0 %", ABSENT.format("SVHN")),
    _not_run("Table V", "FedProx and SCAFFOLD do not converge, SVHN", "36.7, 19.6 %", ABSENT.format("SVHN")),
    _not_run("Table V", "TACO ends highest, CIFAR-10", "55.0 %, FoolsGold 53.7 %", LONG),
    _not_run("Table V", "TACO ends highest, CIFAR-100", "56.1 %, STEM 54.7 %", ABSENT.format("CIFAR-100")),
    _not_run(
        "Table V", "TACO ends highest, Shakespeare", "53.6 %, STEM 52.6 %", ABSENT.format("LEAF's own Shakespeare")
    ),
    *_over_correction(),
    *_client_time(),
    *_coefficients(),
    *_expulsions(),
    *_ablation(),
    *_many_clients(),
    *_tailored_baselines(),
    *_gamma(),
)
