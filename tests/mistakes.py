"""Mistakes in Python, the argument that each message names, and the remedy that it says.

``test_mistakes.py`` makes every one of them. ``python tests/mistakes.py > docs/mistakes.md`` writes them with their
messages as a page of the documentation.
"""

import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import fedjax_drag as fd


class Mistake(NamedTuple):
    """A line of Python that is wrong.

    Attributes:
      title: what is wrong.
      code: the line; the names in it are those of :func:`setting`.
      argument: what the message names.
      remedy: what the message says to do.
      kind: of the error.
    """

    title: str
    code: str
    argument: str
    remedy: str
    kind: type[Exception] = ValueError


NAMES = (
    Mistake("misspelt", "run(batchsize=3)", "batchsize=3", "did you mean 'batch_size'?"),
    Mistake("rounds", "run(rounds=10)", "num_rounds, rounds", "one setting"),
    Mistake("learning rate", "run(lr=0.1)", "lr=0.1", "'step_size'"),
    Mistake("epochs", "run(epochs=1)", "epochs=1", "'local_epochs'"),
    Mistake("clients per round", "run(clients_per_round=5)", "clients_per_round=5", "'cohort_size'"),
    Mistake("data set", "run(dataset=data)", "dataset=", "'data'"),
    Mistake("rule by keyword", "run(aggregator=fd.aggregators.median())", "aggregator=", "the first argument"),
    Mistake("number of clients", "run(num_clients=20)", "num_clients=20", "fd.data.partition"),
    Mistake("client rule by keyword", "run(client=fd.clients.fedsam())", "client=", "from_aggregator"),
    Mistake("momentum", "run(momentum=0.9)", "momentum=0.9", "local_optimizer=optax.trace(0.9)"),
    Mistake("several missing", "fd.simulate(rule, model=model)", "data, num_rounds, cohort_size", "must be given"),
    Mistake("without names", "fd.simulate(rule, model, data)", "Softmax", "must have a name"),
    Mistake("two lengths of a pass", "run(local_epochs=1)", "local_epochs=1", "exactly one of the two"),
    Mistake("range of steps reversed", "run(local_steps=(5, 1))", "local_steps=(5, 1)", "1 <= low <= high"),
    Mistake("too few availabilities", "run(availability=[0.5, 0.5])", "availability=[0.5, 0.5]", "or [rounds, 12]"),
)

METHODS = (
    Mistake("rule not called", "run(fd.aggregators.krum)", "algorithm=", "call it, fd.aggregators.krum(...)"),
    Mistake("name of a rule", 'run("krum")', "algorithm='krum'", "fd.aggregators.krum(...)"),
    Mistake(
        "one root delta for several models",
        "fd.algorithms.ifca(aggregator=fd.aggregators.fltrust())",
        "aggregator=fltrust",
        "must be a rule of the clusters' deltas",
    ),
    Mistake("client rule as method", "run(fd.clients.fedsam())", "algorithm=fedsam(rho=0.05)", "from_aggregator"),
    Mistake("attack as method", "run(fd.attacks.alie())", "algorithm=alie(z=None", "the argument attack"),
    Mistake("optimizer as method", "run(optax.adam(0.1))", "algorithm=", "fedavg(server_optimizer=...)"),
    Mistake("model as method", "run(model)", "algorithm=Softmax", "the argument model"),
    Mistake("mapping as method", 'run({"name": "drag"})', "algorithm=", "fd.run"),
    Mistake("name in a method", 'fd.algorithms.scaffold(20, aggregator="median")', "aggregator=", "median(...)"),
    Mistake(
        "client rule not called",
        "fd.algorithms.from_aggregator(rule, client=fd.clients.fedprox)",
        "client=",
        "call it, fd.clients.fedprox(...)",
    ),
    Mistake(
        "algorithm as rule",
        "fd.algorithms.from_aggregator(fd.algorithms.scaffold(20))",
        "aggregator=",
        "an algorithm is the first argument of fd.simulate",
    ),
    Mistake("output layer", "run(fd.aggregators.deepsight('head'))", "head='head'", "there are Dense_0/bias"),
    Mistake("layers not there", "run(fd.algorithms.fedper('head'))", "layers='head'", "there are Dense_0/bias"),
    Mistake("no layer left to send", "run(fd.algorithms.fedper('Dense_0'))", "layers='Dense_0'", "be local_only"),
    Mistake("rule in a rule not called", "fd.aggregators.nnm(fd.aggregators.median)", "aggregator=", "median(...)"),
    Mistake(
        "clients of another federation", "run(fd.algorithms.scaffold(20))", "num_clients=20", "must be 12, that of"
    ),
    Mistake(
        "rule of another federation",
        "fd.algorithms.scaffold(12, aggregator=fd.aggregators.foolsgold(20))",
        "aggregator=foolsgold: num_clients=20",
        "must be that of the method, 12",
    ),
    Mistake(
        "optimizer of the loss",
        "run(fd.aggregators.fedavg(server_optimizer=optax.lbfgs()))",
        "server_optimizer:",
        "of updates, state and params alone",
    ),
    Mistake("server optimizer not called", "fd.aggregators.fedavg(server_optimizer=optax.adam)", "=function", "optax."),
    Mistake("name of a reducer", 'fd.clients.robust_sgd("median")', "reducer='median'", "write fd.aggregators.median"),
    Mistake(
        "private numbers without noise",
        'run(fd.algorithms.from_aggregator(fd.aggregators.fedavg("examples"), '
        "fd.privacy.local_dp(fd.clients.sgd(), 1.0, 1.0)))",
        "needs num_examples",
        "must be a rule of the deltas alone under local_dp",
    ),
)

MODELS = (
    Mistake("name of a model", 'run(model="mlp")', "model='mlp'", "fd.models.mlp(...)"),
    Mistake("model not called", "run(model=fd.models.mlp)", "model=", "call it, fd.models.mlp(...)"),
    Mistake("class of a model", "run(model=Softmax)", "model=class Softmax", "an instance, Softmax(...)"),
    Mistake("class that needs arguments", "run(model=Layers)", "model=class Layers", "a function (rngs) -> module"),
    Mistake("PyTorch model", "run(model=torch.Linear())", "model=", "flax.linen.Module"),
    Mistake("model without parameters", "run(model=(lambda key: {}, lambda p, x: x))", "model=", "has no parameters"),
    Mistake("wrong classes", "run(model=fd.models.mlp(num_classes=3))", "model:", "must be (1, 10), the logits"),
    Mistake("model that fails", "run(model=fd.models.lstm(num_classes=10))", "model=", "float32[1, 8, 8, 1]"),
    Mistake("batch statistics", "run(model=Normalised())", "model=Normalised", "an argument of its call"),
    Mistake("dropout left off", "run(model=Dropping())", "model=Dropping", "off in training: must have an argument"),
    Mistake("nothing trained", "run(trainable='head')", "trainable='head'", "there are Dense_0/bias, Dense_0/kernel"),
)

DATA = (
    Mistake("name of a data set", 'run(data="digits")', "data='digits'", "fd.data.load(name)"),
    Mistake("array as data", "run(data=np.zeros((9, 64)))", "data=array float64[9, 64]", "fd.data.from_arrays"),
    Mistake("pair as data", "run(data=(x, y))", "data=", "fd.data.from_arrays"),
    Mistake("unsplit data", "run(data=digits)", "data='digits'", "fd.data.partition.dirichlet"),
    Mistake("name in a partition", 'fd.data.partition.iid("digits", 12)', "fed='digits'", "fd.data.load(name)"),
    Mistake("unknown data set", 'fd.data.load("mnsit")', "'mnsit'", "did you mean 'mnist'?"),
    Mistake("validation split too late", "fd.data.hold_out(data, 0.1)", "digits", "must come before the partition"),
    Mistake("targets of two forms", "fd.data.from_arrays(x, y + 0.5, x, y)", "test", "beside float32[N] of train"),
    Mistake("regression without a loss", "run(data=split(y + 0.5))", "data=", "loss must be given"),
    Mistake("one-hot labels", "run(data=split(np.eye(10)[y]))", "data=", ".argmax(1) of one-hot ones"),
    Mistake("labels in a column", "run(data=split(y[:, None]))", "data=", ".ravel() of a column"),
    Mistake("labels as text", "split(y.astype(str))", "train_y", "must be integers or floating"),
    Mistake("split by label", "fd.data.partition.shards(split(y + 0.5), 3)", "arrays", "must be labels"),
    Mistake(
        "backdoor of numbers",
        "run(data=split(y + 0.5), loss=fd.losses.mse(), attack=fd.attacks.backdoor(), num_byzantine=1)",
        "attack=backdoor",
        "needs one label for each example",
    ),
    Mistake("metric not in a list", "run(metrics=fd.metrics.f1())", "metrics=f1", "must be a list of metrics"),
    Mistake("metric that is not measured", "run(metric='f1')", "metric='f1'", "loss; add others to metrics"),
    Mistake("integers as numbers", "run(model=fd.models.mlp(1), loss=fd.losses.mse())", "model:", "need num_classes=0"),
    Mistake("loss of other targets", "run(loss=fd.losses.mse())", "loss", "take outputs float32[B, 10]"),
)

PARTS = (
    Mistake(
        "share of nobody",
        "run(attack=fd.attacks.alie(), byzantine_fraction=0.01)",
        "byzantine_fraction=0.01: is no client of 12 clients",
        "more than 0.04167",
    ),
    Mistake("name of an attack", 'run(attack="alie")', "attack='alie'", "write fd.attacks.alie(...)"),
    Mistake("attack not called", "run(attack=fd.attacks.alie)", "attack=", "call it, fd.attacks.alie("),
    Mistake("name of a selection", 'run(selection="oort")', "selection='oort'", "write fd.selection.oort(...)"),
    Mistake(
        "fewer candidates than a cohort",
        "run(selection=fd.selection.power_of_choice(d=2))",
        "power_of_choice: d=2",
        "from cohort_size to the number of clients",
    ),
    Mistake("name of a clock", 'run(clock="constant")', "clock='constant'", "write fd.clocks.constant(...)"),
    Mistake(
        "buffers without a clock",
        "run(selection=fd.selection.asynchronous(4))",
        "selection=asynchronous",
        "needs a clock, such as clock=fd.clocks.log_normal",
    ),
    Mistake("name of a compressor", 'run(compression="sign")', "compression='sign'", "write fd.compression.sign(...)"),
    Mistake(
        "compressor whose errors add up",
        "run(downlink_compression=fd.compression.qsgd(4))",
        "downlink_compression=qsgd(bits=4",
        "set error_feedback=True",
    ),
    Mistake(
        "single messages under secure aggregation",
        "run(fd.aggregators.median(), secure_aggregation=True)",
        "secure_aggregation=True: median",
        "must be a method of sums over clients",
    ),
    Mistake(
        "attack in an attack not called",
        "fd.attacks.during(fd.attacks.alie)",
        "attack=",
        "call it, fd.attacks.alie(...)",
    ),
    Mistake(
        "attack that ends at once", "fd.attacks.during(fd.attacks.alie(), 5, 5)", "stop=5", "must be above start=5"
    ),
    Mistake("rule as attack", "run(attack=rule)", "attack=fedavg(", "the first argument"),
    Mistake("name of a loss", 'run(loss="cross_entropy")', "loss=", "write fd.losses.cross_entropy(...)"),
    Mistake("loss not called", "run(loss=fd.losses.cross_entropy)", "loss=", "call it, fd.losses.cross_entropy(...)"),
    Mistake("mean loss", "run(loss=lambda logits, labels: logits.mean())", "loss:", "one number for each"),
    Mistake("loss of one-hot labels", "run(loss=optax.softmax_cross_entropy)", "loss:", "targets int32[B]"),
    Mistake("name of an optimizer", 'run(local_optimizer="sgd")', "local_optimizer='sgd'", "optax.trace(0.9)"),
    Mistake("optimizer that climbs", "run(local_optimizer=optax.sgd(0.1))", "local_optimizer:", "optax.trace(0.9)"),
    Mistake(
        "augmentation not called",
        "run(augmentation=fd.data.augmentation.crop_flip)",
        "augmentation=",
        "call it, fd.data.augmentation.crop_flip(...)",
    ),
    Mistake("examples cut", "run(augmentation=lambda key, x: x[:, 2:])", "augmentation=function", "in the same shape"),
    Mistake("local optimizer of the loss", "run(local_optimizer=optax.lbfgs())", "local_optimizer:", "params alone"),
    Mistake("schedule in NumPy", "run(step_size=lambda r: np.ones(6)[r])", "step_size=function", "jnp.asarray(values)"),
    Mistake("two step sizes", "run(step_size=[0.1, 0.2])", "step_size=", "optax schedule"),
    Mistake("key as seed", "run(seed=jax.random.key(0))", "seed=", "must be an integer"),
    Mistake("no configuration", "fd.run(None)", "config=None", "the path of a YAML file"),
    Mistake("number of devices", "run(mesh=4)", "mesh=4", "jax.sharding.Mesh"),
    Mistake("one callback", "run(callbacks=print)", "callbacks=function print", "[print]"),
    Mistake("parameters as state", "run(initial=params)", "initial=", "initial_params"),
    Mistake("result as parameters", "run(initial_params=result)", "initial_params=Result", "such as result.params"),
    Mistake("other parameters", "run(initial_params=params)", "initial_params: has no Dense_0/bias", "there are b, w"),
    Mistake("optimizer to keep", 'run(local_optimizer_state="keep")', "='keep'", "optax.trace(0.9)"),
    Mistake("result as state", "run(initial=result)", "initial=", "give its state, result.state"),
    Mistake("text for yes or no", 'run(time_clients="no")', "time_clients='no'", "must be True or False"),
    Mistake("direction alone", "run(with_direction(lambda g, w, c, d, b: g(w, b)))", "direction", "(direction, carry)"),
    Mistake("rule without state", "run(with_apply(lambda p, d, s, **_: p))", "apply of the rule", "(params, state)"),
    Mistake(
        "metric of a taken name",
        "run(rule._replace(init=lambda p: state._replace(metrics={'round': 0})))",
        "metrics have the name 'round'",
        "must be a text that no column has",
    ),
    Mistake("state without metrics", "run(rule._replace(init=lambda p: ()))", "init of the rule", "a field metrics"),
)

ALONE = (
    Mistake("no root data", "rule_of('br_drag').apply(params, deltas, state)", "root_delta", "by keyword", TypeError),
    Mistake(
        "part of a root delta",
        "rule_of('fltrust').apply(params, deltas, rule_of('fltrust').init(params), root_delta={'w': params['w']})",
        "root_delta: lacks ['b']",
        "must have the structure of params",
    ),
    Mistake("list of deltas", "rule.apply(params, [params, params], state)", "deltas: a list of 2", "jnp.stack"),
    Mistake("one delta", "rule.apply(params, params, state)", "deltas", "leading client axis [S]"),
    Mistake("incomplete deltas", 'rule.apply(params, {"w": deltas["w"]}, state)', "deltas:", "lacks ['b']"),
    Mistake("transposed deltas", "rule.apply(params, transposed, state)", "deltas['w']", "must be [S, 3, 2]"),
    Mistake("integer parameters", "rule.apply(integers, deltas, state)", "params['b'] of type int32", "float32"),
    Mistake("PyTorch tensors", "rule.apply([torch.Tensor()], [torch.Tensor()], state)", "params[0]", ".numpy()"),
    Mistake("no state", "rule.apply(params, deltas, None)", "state of type NoneType", "rule.init(params)"),
    Mistake("state of another rule", "rule_of('drag').apply(params, deltas, state)", "state", "rule.init(params)"),
    Mistake("clients that nobody counts", "fd.algorithms.scaffold().init(params)", "num_clients=None", "be given"),
    Mistake("check of something else", "fd.testing.check_aggregator(fd.attacks.alie())", "rule=", "attack of fd.simul"),
    Mistake("check of a builder", "fd.testing.check_attack(fd.attacks.alie)", "attack=", "call it, fd.attacks.alie("),
    Mistake("check of a rule", "fd.testing.check_algorithm(rule)", "algorithm=", "must be an algorithm, such as"),
    Mistake("check of a name", "fd.testing.check_client_rule('fedprx')", "rule='fedprx'", "fd.clients.fedprox(...)"),
    Mistake("check of a function", "fd.testing.check_compressor(np.sign)", "compressor=", "fd.compression.top_k(0.01)"),
)

GROUPS: Mapping[str, tuple[Mistake, ...]] = {
    "Names of arguments": NAMES,
    "Rules, client rules and algorithms": METHODS,
    "Models": MODELS,
    "Data": DATA,
    "Other arguments, and parts of your own": PARTS,
    "Rules alone": ALONE,
}
MISTAKES = tuple(mistake for group in GROUPS.values() for mistake in group)

HEAD = """# Mistakes and their messages

A wrong argument is an error of one line that names the argument, shows what was given and says what to give instead,
before anything is compiled. In the table `run(...)` stands for
`fd.simulate(rule, model=model, data=data, num_rounds=6, cohort_size=5, local_steps=3, batch_size=4, step_size=0.1)`
with the changes in parentheses, and `rule` for `fd.aggregators.fedavg()`. `with_direction` makes a client rule and
`with_apply` an aggregation rule of the function in parentheses; `Softmax`, `Normalised`, `Dropping` and `Layers` are
models, the last one in Flax NNX.

This page is written by `python tests/mistakes.py > docs/mistakes.md`."""


class Softmax(nn.Module):
    """A model that is quick to trace."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps inputs to logits."""
        return nn.Dense(self.num_classes)(x.reshape(x.shape[0], -1))


class Normalised(nn.Module):
    """A model with statistics of batches."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps inputs to logits."""
        return nn.Dense(10)(nn.BatchNorm(use_running_average=False)(x.reshape(x.shape[0], -1)))


class Dropping(nn.Module):
    """A model with dropout that nothing switches on."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps inputs to logits."""
        return nn.Dropout(0.5, deterministic=True)(nn.Dense(10)(x.reshape(x.shape[0], -1)))


class Layers(nnx.Module):
    """A model in the other style of Flax."""

    def __init__(self, inputs: int, rngs: nnx.Rngs):
        self.dense = nnx.Linear(inputs, 10, rngs=rngs)


@functools.cache
def setting() -> dict[str, Any]:
    """The names in the lines of code."""
    digits = fd.data.load("digits")
    rule = fd.aggregators.fedavg()
    given = {"model": Softmax(), "data": fd.data.partition.dirichlet(digits, num_clients=12, beta=0.3, seed=0)}
    given |= {"num_rounds": 6, "cohort_size": 5, "local_steps": 3, "batch_size": 4, "step_size": 0.1}
    params = {"b": jnp.zeros(2), "w": jnp.zeros((3, 2))}
    deltas = jax.tree.map(lambda leaf: jnp.ones((4, *leaf.shape)), params)
    shown = ("b", "w")

    def with_direction(direction: Any) -> fd.types.Algorithm:
        return fd.algorithms.from_aggregator(rule, fd.types.ClientRule(direction=direction))

    return {
        "fd": fd,
        "jax": jax,
        "np": np,
        "optax": optax,
        "Softmax": Softmax,
        "Normalised": Normalised,
        "Dropping": Dropping,
        "Layers": Layers,
        "torch": pytorch(),
        "digits": digits,
        "x": np.zeros((9, 64)),
        "y": np.arange(9),
        "split": split,
        "rule": rule,
        **given,
        "params": params,
        "deltas": deltas,
        "state": rule.init(params),
        "result": finished(params),
        "integers": {name: params[name].astype(int) for name in shown},
        "transposed": deltas | {"w": jnp.swapaxes(deltas["w"], 1, 2)},
        "run": lambda algorithm=rule, **changes: fd.simulate(algorithm, **given | changes),
        "rule_of": lambda name: getattr(fd.aggregators, name)(),
        "with_direction": with_direction,
        "with_apply": lambda apply: fd.types.Aggregator(rule.init, apply),
    }


def split(y: Any) -> fd.data.FederatedDataset:
    """Nine examples with such targets, one a client."""
    x = np.zeros((9, 64))
    return fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=9)


def pytorch() -> Any:
    """What PyTorch's objects look like, which is not installed for tests."""
    return SimpleNamespace(**{name: type(name, (), {"__module__": "torch"}) for name in ("Linear", "Tensor")})


def finished(params: Any) -> fd.simulation.Result:
    """A result, as a run returns it."""
    nothing: Any = None
    return fd.simulation.Result(params, {}, nothing, 1.0, 1.0, nothing, None)


@functools.cache
def made(mistake: Mistake) -> BaseException | None:
    """The error that a mistake ends in; None if there is none."""
    try:
        eval(mistake.code, dict(setting()))
    except Exception as error:
        return error
    return None


def page() -> str:
    """The page of the documentation."""
    parts = [HEAD]
    for title, group in GROUPS.items():
        rows = [f"| {_cell(mistake.code)} | {_cell(_message(mistake))} |" for mistake in group]
        parts.append("\n".join([f"## {title}\n", "| mistake | message |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _message(mistake: Mistake) -> str:
    """What a mistake's error says, without the words of another library, which may change."""
    own, fails, _ = str(made(mistake)).partition("; it fails with ")
    return f"{own}{fails}{'...' if fails else ''}"


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
