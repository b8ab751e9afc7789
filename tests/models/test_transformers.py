"""Transformers against their equations in NumPy, and low-rank adapters against products of matrices."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

import fedjax_drag as fd
from fedjax_drag import models

TOKENS = np.random.default_rng(0).integers(0, 11, (3, 7))
IMAGES = np.random.default_rng(0).normal(size=(3, 8, 12, 2)).astype(np.float32)
DECODER = models.transformer(11, layers=2, heads=2, width=8, max_length=9, return_sequences=True)
VIT = models.vit(5, layers=2, heads=2, width=8, patch=4)


def random_params(model, x):
    """All entries random, so that nothing hides behind zeros."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), shapes)


def norm(p, x, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def block(p, x, heads, causal, epsilon):
    """Vaswani et al. (2017), Equation 1, head by head and position by position."""
    state = norm(p["LayerNorm_0"], x, epsilon)
    q, k, v = (np.split(dense(p[name], state), heads, -1) for name in ("query", "key", "value"))
    attended = []
    for head in range(heads):
        rows = []
        for t in range(x.shape[1]):
            seen = slice(0, t + 1) if causal else slice(None)
            score = np.einsum("bd,bsd->bs", q[head][:, t], k[head][:, seen]) / np.sqrt(x.shape[-1] / heads)
            weight = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
            rows.append(np.einsum("bs,bsd->bd", weight, v[head][:, seen]))
        attended.append(np.stack(rows, 1))
    x = x + dense(p["out"], np.concatenate(attended, -1))
    return x + dense(p["mlp_out"], gelu(dense(p["mlp_in"], norm(p["LayerNorm_1"], x, epsilon))))


def test_the_decoder_is_that_of_the_equations():
    params = random_params(DECODER, TOKENS)
    p = jax.tree.map(np.float64, params["params"])
    x = p["tokens"]["embedding"][TOKENS] + p["positions"][:7]
    for index in range(2):
        x = block(p[f"Block_{index}"], x, 2, causal=True, epsilon=1e-5)
    wanted = norm(p["LayerNorm_0"], x, 1e-5) @ p["tokens"]["embedding"].T
    np.testing.assert_allclose(DECODER.apply(params, TOKENS), wanted, rtol=1e-4, atol=1e-4)
    last = models.transformer(11, layers=2, heads=2, width=8, max_length=9).apply(params, TOKENS)
    np.testing.assert_allclose(last, wanted[:, -1], rtol=1e-4, atol=1e-4)


def test_the_vision_transformer_is_that_of_the_equations():
    params = random_params(VIT, IMAGES)
    p = jax.tree.map(np.float64, params["params"])
    patches = [IMAGES[:, row : row + 4, column : column + 4].reshape(3, -1) for row in (0, 4) for column in (0, 4, 8)]
    x = dense(p["patches"], np.stack(patches, 1))
    x = np.concatenate([np.broadcast_to(p["class"], (3, 1, 8)), x], 1) + p["positions"]
    for index in range(2):
        x = block(p[f"Block_{index}"], x, 2, causal=False, epsilon=1e-6)
    wanted = dense(p["head"], norm(p["LayerNorm_0"], x[:, 0], 1e-6))
    np.testing.assert_allclose(VIT.apply(params, IMAGES), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "x", "count"),
    [
        (models.transformer(50257, "gpt2"), TOKENS, 124_439_808),
        (models.transformer(50257, "gpt2-xl"), TOKENS, 1_557_611_200),
        (models.vit(1000, "b"), np.zeros((1, 224, 224, 3)), 86_567_656),
        (models.vit(1000, "l"), np.zeros((1, 224, 224, 3)), 304_326_632),
    ],
    ids=["transformer gpt2", "transformer gpt2-xl", "vit b", "vit l"],
)
def test_published_sizes_have_the_published_numbers_of_parameters(model, x, count):
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def test_what_does_not_fit_a_transformer_is_refused():
    with pytest.raises(ValueError, match="max_length=9: the texts have 10 tokens"):
        jax.eval_shape(DECODER.init, jax.random.key(0), np.zeros((1, 10), int))
    with pytest.raises(ValueError, match="8x10"):
        jax.eval_shape(VIT.init, jax.random.key(0), np.zeros((1, 8, 10, 1)))
    with pytest.raises(ValueError, match=r"^x\.shape=\(1, 9\), x\.dtype=float32: this transformer needs integer"):
        DECODER.init(jax.random.key(0), jnp.zeros((1, 9)))
    with pytest.raises(ValueError, match=r"^x\.shape=\(1, 32\): ViT needs \[B, H, W, C\]"):
        models.vit(10).init(jax.random.key(0), jnp.zeros((1, 32)))


def stacked(params):
    """Parameters of two blocks as those of a loop over them."""
    first, second = (params.pop(f"Block_{index}") for index in range(2))
    return params | {"blocks": jax.tree.map(lambda *leaves: np.stack(leaves), first, second)}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "x"), [("transformer", TOKENS), ("vit", IMAGES)])
def test_a_loop_over_the_blocks_is_the_same_model(name, x):
    options = {"num_classes": 11, "layers": 2, "heads": 2, "width": 8}
    plain, looped = (getattr(models, name)(**options, scan_layers=scan) for scan in (False, True))
    params = random_params(plain, x)["params"]
    wanted = plain.apply({"params": params}, x)
    loss = lambda model: lambda params: (model.apply({"params": params}, x) ** 2).sum()
    gradient = stacked(jax.grad(loss(plain))(params))
    own = stacked(params)
    shapes = lambda tree: jax.tree.map(np.shape, tree)
    drawn = looped.init(jax.random.key(0), x)["params"]
    assert shapes(drawn) == shapes(own)
    kernel = drawn["blocks"]["mlp_in"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])
    np.testing.assert_allclose(looped.apply({"params": own}, x), wanted, rtol=1e-5, atol=1e-6)
    found = jax.grad(loss(looped))(own)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, gradient)


def test_adapters_in_a_loop_over_the_blocks():
    adapted, looped = (
        models.lora(models.transformer(11, layers=2, heads=2, width=8, scan_layers=scan), targets="query")
        for scan in (False, True)
    )
    params = random_params(adapted, TOKENS)["params"]
    wanted = adapted.apply({"params": params}, TOKENS)
    np.testing.assert_allclose(looped.apply({"params": stacked(params)}, TOKENS), wanted, rtol=1e-5, atol=1e-6)


def test_an_lstm_that_returns_sequences_gives_at_each_position_what_the_other_gives_for_the_text_so_far():
    options = {"num_classes": 11, "embedding": 3, "hidden": 5, "layers": 2}
    sequences, last = models.lstm(**options, return_sequences=True), models.lstm(**options)
    params = random_params(last, TOKENS)
    for length in (1, 4, 7):
        found = sequences.apply(params, TOKENS)[:, length - 1]
        np.testing.assert_allclose(found, last.apply(params, TOKENS[:, :length]), rtol=1e-5, atol=1e-6)


def test_adapters_add_their_product_to_the_kernels_that_they_are_for():
    adapted = models.lora(DECODER, rank=3, targets=["query", "Block_1/mlp_*"], alpha=6.0)
    params = random_params(adapted, TOKENS)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)}
    layers = ("Block_0/query", "Block_1/query", "Block_1/mlp_in", "Block_1/mlp_out")
    plain = jax.tree.map(lambda leaf: leaf, params["params"])
    for layer in layers:
        outer, name = layer.split("/")
        own = plain[outer][name]
        own["kernel"] = own["kernel"] + 6 / 3 * own.pop("lora_a") @ own.pop("lora_b")
    assert sum("lora_" in name for name in names) == 2 * len(layers)
    np.testing.assert_allclose(
        adapted.apply(params, TOKENS), DECODER.apply({"params": plain}, TOKENS), rtol=1e-4, atol=1e-5
    )
    drawn = adapted.init(jax.random.key(0), TOKENS)
    np.testing.assert_array_equal(adapted.apply(drawn, TOKENS), DECODER.apply(drawn, TOKENS))


@pytest.mark.thorough
def test_adapters_of_a_model_that_knows_training():
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))

    x, y = np.ones((12, 4), np.float32), np.arange(12) % 3
    fed = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y, normalize="none"), num_clients=2)
    options = {"num_rounds": 1, "cohort_size": 2, "step_size": 0.1, "local_steps": 1, "batch_size": 2}
    result = fd.simulate(fd.aggregators.fedavg(), model=models.lora(Noisy(), rank=1), data=fed, **options)
    assert result.history["bytes_up"][-1] == 2 * 4 * (4 + 3)
    everything = fd.simulate(
        fd.aggregators.fedavg(), model=models.lora(Noisy(), rank=1), data=fed, trainable="*", **options
    )
    assert everything.history["bytes_up"][-1] == 2 * 4 * (4 + 3 + 12 + 3)


def test_adapters_of_layers_with_several_axes():
    adapted = models.lora(nn.DenseGeneral((3, 2), axis=(-2, -1)), rank=2)
    x = np.random.default_rng(0).normal(size=(5, 4, 6)).astype(np.float32)
    params = random_params(adapted, x)
    own = params["params"]
    kernel = own["kernel"] + np.einsum("ijr,rkl->ijkl", own["lora_a"], own["lora_b"])
    np.testing.assert_allclose(
        adapted.apply(params, x), np.einsum("bij,ijkl->bkl", x, kernel) + own["bias"], rtol=1e-4, atol=1e-4
    )


class ByName(nn.Module):
    """Calls a dense layer with its input by name."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(inputs=x)


def test_layers_that_are_called_by_name_are_adapted():
    model, x = models.lora(ByName(), rank=2), np.ones((5, 4), np.float32)
    params = random_params(model, x)
    own = params["params"]["Dense_0"]
    expected = x @ (own["kernel"] + own["lora_a"] @ own["lora_b"]) + own["bias"]
    np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-4, atol=1e-4)


def test_targets_that_match_no_dense_layer_are_named():
    with pytest.raises(ValueError, match=r"^targets=\('head',\): match no dense layer of the model; there are Dense_0"):
        jax.eval_shape(models.lora(ByName(), targets="head").init, jax.random.key(0), np.ones((5, 4), np.float32))


def test_integers_are_adapted_as_the_same_numbers():
    model, x = models.lora(models.mlp(3, hidden=()), rank=2), np.arange(20).reshape(5, 4)
    params = random_params(model, x)
    np.testing.assert_array_equal(model.apply(params, x), model.apply(params, x.astype(np.float32)))


def test_a_federation_of_adapters_is_a_plain_loop_over_them():
    """One client with all data and full batches: gradient descent on the adapters, whose bytes alone travel."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 6)).astype(np.float32), np.arange(24) % 3
    model = models.lora(models.mlp(3, hidden=(5,)), rank=2)
    start = random_params(model, x)["params"]
    fed = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y, normalize="none"), num_clients=1)
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=model,
        data=fed,
        num_rounds=3,
        cohort_size=1,
        step_size=0.1,
        local_steps=4,
        batch_size="full",
        initial_params=start,
    )

    def loss(adapters):
        own = {name: layer | adapters[name] for name, layer in start.items()}
        logits = model.apply({"params": own}, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(y)[:, None], 1).mean()

    adapters = {name: {key: layer[key] for key in ("lora_a", "lora_b")} for name, layer in start.items()}
    for _ in range(12):
        adapters = jax.tree.map(lambda w, g: w - 0.1 * g, adapters, jax.jit(jax.grad(loss))(adapters))
    trained = {name: {key: layer[key] for key in adapters[name]} for name, layer in result.params.items()}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), trained, adapters)
    floats = sum(leaf.size for leaf in jax.tree.leaves(adapters))
    assert result.history["bytes_up"].sum() == 4 * floats * 3


def test_pretrained_weights_need_no_adapters(tmp_path):
    """They are drawn by the seed, as without pretrained weights; a file with some of them lacks the others."""
    x, y = np.ones((8, 6), np.float32), np.arange(8) % 3
    fed = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y, normalize="none"), num_clients=2)
    plain = models.mlp(3, hidden=(5,))
    pretrained = flatten_dict(random_params(plain, x)["params"], sep="/")
    save_file(pretrained, tmp_path / "pretrained.safetensors")
    options = {"num_rounds": 1, "cohort_size": 2, "step_size": 0.1, "local_steps": 1, "batch_size": 2, "seed": 3}
    options |= {"model": models.lora(plain, rank=2), "data": fed}
    drawn = fd.simulation.prepare(fd.aggregators.fedavg(), **options).initial_state()
    path = tmp_path / "pretrained.safetensors"
    start = fd.simulation.prepare(fd.aggregators.fedavg(), initial_params=path, **options).initial_state()
    jax.tree.map(np.testing.assert_array_equal, start.params, drawn.params)
    frozen = {name: leaf for name, leaf in flatten_dict(start.model.frozen, sep="/").items() if leaf is not None}
    jax.tree.map(np.testing.assert_array_equal, frozen, pretrained)
    some = {**pretrained, "Dense_0/lora_a": np.ones((6, 2), np.float32)}
    with pytest.raises(ValueError, match="initial_params: has no Dense_0/lora_b"):
        fd.simulation.prepare(fd.aggregators.fedavg(), initial_params=some, **options)
