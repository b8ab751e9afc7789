"""Graphs: degrees, weights, what is drawn, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import graphs
from fedjax_drag.graphs import spectral_gap

GRAPHS = {
    "ring": graphs.ring(),
    "torus": graphs.torus(3),
    "complete": graphs.complete(),
    "random_regular": graphs.random_regular(5),
    "erdos_renyi": graphs.erdos_renyi(0.3, seed=2),
    "from_edges": graphs.from_edges([(0, i) for i in range(1, 12)]),
    "changing": graphs.changing(graphs.torus(4)),
}
NODES = 12


def matrix_of(near):
    """The mixing matrix that the padded lists stand for."""
    W = np.zeros((NODES, NODES))
    for i, (nodes, weights) in enumerate(zip(np.asarray(near.nodes), np.asarray(near.weight), strict=True)):
        for j, weight in zip(nodes, weights, strict=True):
            W[i, j] += weight
    return W + np.diag(1 - W.sum(1))


@pytest.mark.parametrize("name", GRAPHS)
def test_mixing_matrices_are_symmetric_and_doubly_stochastic(name):
    graph = GRAPHS[name]
    for round_index in range(2):
        W = matrix_of(graph.at(NODES, jax.random.key(round_index)))
        np.testing.assert_allclose(W, W.T, atol=1e-6)
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-6)
        assert (W >= -1e-7).all()
        sizes = np.sort(np.abs(np.linalg.eigvalsh(W)))
        np.testing.assert_allclose(spectral_gap(graph, NODES), 1 - sizes[-2], atol=1e-6)
    assert 0 < spectral_gap(graph, NODES) <= 1
    assert not np.diag(graph.adjacency(NODES)).any()


def test_degrees_and_gaps():
    degrees = {name: set(graph.adjacency(NODES).sum(1)) for name, graph in GRAPHS.items() if name != "erdos_renyi"}
    assert degrees == {
        "ring": {2},
        "torus": {4},
        "complete": {11},
        "random_regular": {5},
        "from_edges": {1, 11},
        "changing": {4},
    }
    np.testing.assert_allclose(spectral_gap(graphs.ring(), NODES), 2 / 3 * (1 - np.cos(2 * np.pi / NODES)))
    np.testing.assert_allclose(spectral_gap(graphs.complete(), NODES), 1)
    assert set(graphs.torus(2).adjacency(NODES).sum(1)) == {3}, "of two rows each is the other's neighbour once"
    assert set(graphs.ring().adjacency(2).sum(1)) == {1}


def test_random_graphs_are_those_of_their_seed():
    for build in (lambda seed: graphs.random_regular(4, seed), lambda seed: graphs.erdos_renyi(0.4, seed)):
        first, again, other = (build(seed).adjacency(NODES) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()
    mean = np.mean([graphs.erdos_renyi(0.5, seed).adjacency(NODES).mean() for seed in range(40)])
    assert abs(mean - 0.5 * (NODES - 1) / NODES) < 0.03
    shared = sum(graphs.random_regular(4, seed).adjacency(NODES) for seed in range(200))[~np.eye(NODES, dtype=bool)]
    assert abs(shared - 200 * 4 / 11).max() < 30, "every pair is an edge as often"


def test_a_changing_graph_is_the_same_with_its_nodes_in_other_places():
    graph = graphs.changing(graphs.ring())
    one, other = (matrix_of(graph.at(NODES, jax.random.key(seed))) for seed in (0, 1))
    assert (one != other).any()
    for W in (one, other):
        np.testing.assert_allclose(np.linalg.eigvalsh(W), np.linalg.eigvalsh(graphs.ring().weights(NODES)), atol=1e-6)


def test_edges_of_a_file_and_their_weights(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("0, 1, 0.25\n1, 2, 0.5\n", encoding="utf-8-sig")  # as a spreadsheet does
    graph = graphs.from_edges(str(path))
    np.testing.assert_allclose(graph.weights(3), [[0.75, 0.25, 0], [0.25, 0.25, 0.5], [0, 0.5, 0.5]])
    assert graphs.from_edges(path) == graph
    same = graphs.from_edges([[0, 1, 0.25], [1, 2, 0.5]])
    np.testing.assert_array_equal(graph.weights(3), same.weights(3))
    assert hash(same) == hash(graphs.from_edges(((0, 1, 0.25), (1, 2, 0.5))))


@pytest.mark.parametrize("mix", [graphs.mixing.gossip(), graphs.mixing.clippedgossip(10.0)], ids=lambda mix: mix.name)
@pytest.mark.parametrize("sent", [np.nan, np.inf, 3e38])
def test_what_is_forged_for_a_neighbour_and_cannot_be_computed_with_is_not_mixed(mix, sent):
    """Client 0 of a ring sends this to its neighbours, who do without it."""
    models, near = {"w": jnp.array([[0.0], [1.0], [2.0], [4.0]])}, graphs.ring().at(4, jax.random.key(0))
    forge = lambda own, others, weight, nodes: {"w": jnp.where((nodes == 0)[:, None], sent, others["w"])}
    keys = jax.random.split(jax.random.key(0), 4)
    mixed, weight = mix.everywhere(models, models, near, keys, forge)
    np.testing.assert_allclose(mixed["w"][:, 0], [5 / 3, 4 / 3, 7 / 3, 10 / 3], rtol=1e-6)
    np.testing.assert_allclose(np.where(near.nodes == 0, weight, 0).sum(), 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: graphs.torus(0), "rows=0: must be an integer >= 1"),
        (lambda: graphs.torus(5).weights(12), "rows=5: must divide the 12 clients"),
        (lambda: graphs.random_regular(1), "degree=1: must be an integer >= 2"),
        (lambda: graphs.random_regular(12).weights(12), "degree=12: must be below the 12 clients"),
        (lambda: graphs.random_regular(3).weights(5), "degree=3: must be below the 5 clients, and even where these"),
        (lambda: graphs.erdos_renyi(0.0), "p=0.0: must be in"),
        (lambda: graphs.erdos_renyi(0.01).weights(30), "100 draws for 30 clients were not connected"),
        (lambda: graphs.from_edges([(0, 3)]).weights(3), r"edges=\(\(0, 3\),\): must be pairs of different client ids"),
        (lambda: graphs.from_edges([(0, 1), (1, 0)]).weights(3), "each once"),
        (lambda: graphs.from_edges([(0, 1), (1, 2, 0.5)]).weights(3), "all with weights or none"),
        (lambda: graphs.from_edges([(0, 1, 0.9), (1, 2, 0.5)]).weights(3), "edges: weights must be >= 0, those of a"),
        (lambda: graphs.from_edges([(0, 1, float("nan"))]).weights(3), "edges: weights must be >= 0, those of a"),
        (lambda: graphs.from_edges("nowhere.txt"), "edges='nowhere.txt': must be a file with.*FileNotFoundError"),
        (lambda: graphs.from_edges([0, 1, 2]), r"edges=\[0, 1, 2\]: must be pairs of client ids, or a file"),
        (lambda: graphs.changing("ring"), r"graph='ring': must be a graph.*write fd.graphs.ring\(...\)"),
        (lambda: fd.algorithms.decentralised(graphs.ring), r"graph=.*call it, fd.graphs.ring\(...\)"),
        (
            lambda: fd.algorithms.decentralised(graphs.ring(), fd.aggregators.krum()),
            "mixing=.*must be a mixing, such as fd.graphs.mixing.gossip",
        ),
        (lambda: graphs.mixing.clippedgossip(0.0), "radius=0.0: must be"),
        (lambda: graphs.mixing.from_rule(fd.aggregators.krum()), "aggregator=krum: must be given num_byzantine"),
        (lambda: graphs.mixing.from_rule(fd.aggregators.drag()), "aggregator=drag: must keep nothing"),
        (lambda: graphs.mixing.from_rule(fd.aggregators.br_drag()), "aggregator=br_drag: needs root_delta"),
        (lambda: fd.attacks.dissensus(0.0), "strength=0.0: must be"),
    ],
)
def test_wrong_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)
