import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from font import weights as weighing
from font.labels import count_rows


def tables_of(labels, models):
    patterns, counts = count_rows([labels[name].to_numpy() for name in models])
    offsets = np.cumsum([0, *(len(beta) for beta in models.values())])
    return weighing.cross_tabulate(list(patterns.T), offsets, counts)


def test_distances_by_hand():
    table = np.array([[1.0, 0.0], [0.0, 1.0], [0.36, 0.64]])
    assert weighing.class_distances(table, "euclidean")[0, 1] == pytest.approx(np.sqrt(2))
    assert weighing.class_distances(table, "hellinger")[0, 1] == pytest.approx(1)
    assert weighing.class_distances(table, "hellinger")[0, 2] == pytest.approx(
        np.sqrt((0.4**2 + 0.8**2) / 2)
    )
    assert weighing.class_distances(table, "total-variation")[0, 2] == pytest.approx(0.64)
    own = weighing.class_distances(table, lambda b: 2 * np.abs(b[:, :1] - b[:, 0]))
    assert own[0, 2] == pytest.approx(1.28)


@pytest.mark.parametrize(
    ("distance", "message"),
    [
        ("manhattan", "distance, unless a function, must be one of 'euclidean'"),
        ("hellinger", "'A' hold the value -1"),
        (lambda b: np.zeros(3), r"shape \(3,\) for the 2 classes of 'A'"),
        (lambda b: np.array([[0.0, 1], [2, 0]]), "not distances"),
        (lambda b: np.array([[1.0, 1], [1, 0]]), "not distances"),
        (lambda b: np.array([[0.0, -1], [-1, 0]]), "not distances"),
        (lambda b: np.array([[0.0, np.nan], [np.nan, 0]]), "not distances"),
    ],
)
def test_distances_are_refused_in_one_sentence(distance, message):
    with pytest.raises(ValueError, match=message):
        weighing.class_distances(np.array([[-1.0], [1.0]]), distance, "A")


def test_cross_tabulations_do_not_depend_on_blocks(make_case, monkeypatch):
    case = make_case(200, 3, 4)
    whole = tables_of(case.labels, case.models)
    monkeypatch.setattr(weighing, "_BLOCK", 7)
    assert (tables_of(case.labels, case.models) == whole).all()
    first, second = case.labels["m0"], case.labels["m2"]
    assert whole[1, 8 + 3] == ((first == 1) & (second == 3)).sum()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 5), st.integers(10, 60))
def test_agreement_and_weights_equal_the_dense_version(dense, make_case, seed, m, k, n):
    case = make_case(n, m, k, seed=seed)
    distances = [weighing.class_distances(beta, "euclidean") for beta in case.models.values()]
    tables = tables_of(case.labels, case.models)
    norms, cosines, centred, centred_cosines = weighing.agreements(distances, tables)
    expected = dense(case.models, case.labels)
    np.testing.assert_allclose(cosines, expected.cosines, atol=1e-12)
    np.testing.assert_allclose(centred_cosines, expected.centred_cosines, atol=1e-11)
    weights = weighing.model_weights("spectral", cosines, centred_cosines)
    np.testing.assert_allclose(weights, expected.weights, atol=1e-9)
    assert norms.shape == (m,)
    assert all(abs(c).max() <= 2 * abs(d).max() for c, d in zip(centred, distances, strict=True))


def weights_of(case, method, reliability=None):
    distances = [weighing.class_distances(beta, "euclidean") for beta in case.models.values()]
    tables = tables_of(case.labels, case.models)
    _, cosines, _, centred = weighing.agreements(distances, tables)
    return weighing.model_weights(method, cosines, centred, reliability)


def test_cosines_of_rounded_tables_do_not_exceed_one():
    """Blocks that were rounded by themselves need not fit together: a cosine could be 1.001."""
    distances = [np.array([[0.0, 1.0], [1.0, 0.0]])] * 2
    exact = np.kron(np.ones((2, 2)), np.diag([110.0, 110.0]))  # two models that agree
    rounded = exact.copy()
    rounded[0, 2] = rounded[2, 0] = rounded[1, 3] = rounded[3, 1] = 121.0
    for tables in (exact, rounded):
        assert weighing.agreement(distances, tables)[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_weights_follow_accuracy(make_case):
    case = make_case(4000, 5, 4, [0.95, 0.85, 0.75, 0.6, 0.4])
    for method in ("spectral", "centred"):
        assert (np.diff(weights_of(case, method)) < 0).all()


def test_centring_punishes_noninformative_models_and_the_paper_hardly_does(make_case):
    case = make_case(4000, 5, 4, [0.9, 0.9, 0.9, 0, 0])
    spectral, centred = weights_of(case, "spectral"), weights_of(case, "centred")
    assert (spectral[3:] > 0.8 * spectral.max()).all()
    assert (centred[3:] < 0.02 * centred.max()).all()


def test_sparse_weights_drop_the_useless_and_keep_the_rest(make_case):
    weights = weights_of(make_case(4000, 5, 4, [0.9, 0.8, 0.9, 0, 0]), "sparse")
    assert (weights[3:] == 0).all()
    assert (weights[:3] > 0.4).all()
    assert np.linalg.norm(weights) == pytest.approx(1)


def test_prior_weights_solve_the_constrained_problem(make_case):
    case = make_case(500, 4, 3, [0.9, 0.8, 0.7, 0.6])
    reliability = np.array([1.0, 0.5, 2.0, 0.0])
    weights = weights_of(case, "prior", reliability)
    assert weights[3] == 0
    assert np.linalg.norm(weights) == pytest.approx(1)
    distances = [weighing.class_distances(beta, "euclidean") for beta in case.models.values()]
    cosines = weighing.agreement(distances, tables_of(case.labels, case.models))[1]

    def value(w):
        return w @ cosines @ w / np.sum(w[:3] ** 2 / reliability[:3])

    rng = np.random.default_rng(0)
    others = np.abs(rng.normal(size=(500, 4))) * [1, 1, 1, 0]
    assert value(weights) >= max(map(value, others))
    equal = weights_of(case, "prior", np.full(4, 3.0))
    np.testing.assert_allclose(equal, weights_of(case, "spectral"))


def test_equal_and_identical_models_weigh_the_same(make_case):
    case = make_case(100, 4, 3)
    np.testing.assert_allclose(weights_of(case, "equal"), 0.5)
    case = case._replace(
        models=dict.fromkeys(case.models, case.models["m0"]),
        labels=case.labels.assign(**dict.fromkeys(case.models, case.labels["m0"])),
    )
    for method in ("spectral", "centred", "sparse"):
        np.testing.assert_allclose(weights_of(case, method), 0.5)


def test_models_with_nothing_in_common_weigh_the_same():
    np.testing.assert_allclose(weighing.leading(np.eye(4)), 0.5)
    np.testing.assert_allclose(weighing.leading(np.diag([1.0, 0.0, 1.0])), [0.5**0.5, 0, 0.5**0.5])


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        (None, "needs reliability="),
        ({"A": 1}, "no value for the models 'B'"),
        ({"A": 1, "B": -1}, "0 or more"),
        ({"A": 0, "B": 0}, "not all 0"),
    ],
)
def test_reliabilities_are_refused_in_one_sentence(given_values, message):
    with pytest.raises(ValueError, match=message):
        weighing.reliabilities(given_values, ["A", "B"])
