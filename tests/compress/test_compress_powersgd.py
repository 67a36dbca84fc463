"""PowerSGD in two phases: what is sent, what is kept, what is applied, and that all of it is canonical."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.compress.merge import WeightedUpdate, mean, merge
from farflung.compress.payload import HEADER_BYTES, ContributionKey
from farflung.compress.powersgd import BASIS, FACTOR, LowRankCodec
from farflung.core.errors import ProtocolError, RunError, SpecError, VerificationError
from farflung.core.ids import Hash, PeerId
from farflung.core.tensor_layout import TensorLayout

CASES = settings(max_examples=40)
LAYOUT = TensorLayout.of({"bias": (7,), "conv": (6, 3, 3, 3), "scale": (), "thin": (2, 9), "weight": (40, 33)})
RANK = 2
CODEC = LowRankCodec(RANK, 1.0)
UNIT = 2.0**-24  # of the merge
PEERS = [PeerId(bytes([i]) * 32) for i in range(1, 4)]


def about(phase, peer=PEERS[0], round=3):
    return ContributionKey(round, phase, Hash(b"\x01" * 32), peer)


def gaussian(layout=LAYOUT, seed=0):
    return np.random.default_rng(seed).standard_normal(layout.size).astype(np.float32)


def agreed(codec, layout, phase, payloads, order=None):
    """The mean of (peer, weight, payload), merged in `order`."""
    parts = [WeightedUpdate(p, weight, codec.decode(data, layout, about(phase, p))) for p, weight, data in payloads]
    return mean(merge(layout, [parts[i] for i in order or range(len(parts))]))


def round_of(codec, layout, query, residuals, changes, weights=(1, 1, 1), stayed=None, order=None):
    """Both phases: the aggregate, the next warm start, the residuals, what each one's payload says, and the basis."""
    made = [
        codec.starting(query).encode(e, u, layout, about(BASIS, p))
        for e, u, p in zip(residuals, changes, PEERS, strict=True)
    ]
    payloads = [(p, w, m[1]) for p, w, m in zip(PEERS, weights, made, strict=True)]
    basis = codec.basis(agreed(codec, layout, BASIS, payloads, order), layout)
    kept, second, nothing = [unsent for unsent, _ in made], [], np.zeros(layout.size, np.float32)
    for i in stayed or range(len(PEERS)):
        kept[i], data = codec.starting(basis).encode(kept[i], nothing, layout, about(FACTOR, PEERS[i]))
        second.append((PEERS[i], weights[i], data))
    order = order if stayed is None else None
    change, query = codec.change(basis, agreed(codec, layout, FACTOR, second, order), layout)
    says = {p: codec.restored(basis, codec.decode(data, layout, about(FACTOR, p)), layout) for p, _, data in second}
    return change, query, kept, says, basis


def numbers(payload):
    return (len(payload) - HEADER_BYTES) // 4


def test_matrices_are_sent_as_factors_and_all_else_as_it_is():
    one, two = PAYLOADS
    assert numbers(one) == RANK * (6 + 40)
    assert numbers(two) == 7 + RANK * 27 + 1 + 18 + RANK * 33
    found = CODEC.decode(two, LAYOUT, about(FACTOR))
    for tensor, place in LAYOUT.slices():
        if tensor.name in ("conv", "weight"):
            columns = tensor.size // tensor.shape[0]
            assert found[place][: RANK * columns].all()
            assert not found[place][RANK * columns :].any()
        else:
            assert np.array_equal(found[place], gaussian()[place])


@CASES
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 8))
def test_factors_save_bytes_and_fit_in_the_place_of_their_tensor(n, m, rank):
    layout, codec = TensorLayout.of({"w": (n, m), "x": (50, 50)}), LowRankCodec(rank, 1.0)
    other, query = TensorLayout.of({"x": (50, 50)}), codec.query(layout, 7)
    lengths = [codec.bound(layout) - codec.bound(other), 2 * (codec.expect(layout) - codec.expect(other))]
    assert query.shape == (layout.size,)
    if rank * (n + m) < n * m:
        assert rank < min(n, m)
        assert lengths[1] == 4 * rank * (n + m)
        block = query[: m * rank].reshape(m, rank).astype(np.float64)
        assert np.allclose(block.T @ block, np.eye(rank), atol=1e-6)
        assert not query[m * rank : n * m].any()
    else:
        assert lengths == [4 * n * m] * 2
        assert not query[: n * m].any()


def test_first_warm_start_is_the_seeds_own():
    assert CODEC.query(LAYOUT, 1).tobytes() == CODEC.query(LAYOUT, 1).tobytes()
    assert CODEC.query(LAYOUT, 1).tobytes() != CODEC.query(LAYOUT, 2).tobytes()


def test_one_peer_sends_the_best_step_of_power_iteration():
    """Algorithm 1 in plain float64, as an oracle."""
    values, query = gaussian(), CODEC.query(LAYOUT, 1)
    change, following, kept, _, _ = round_of(CODEC, LAYOUT, query, [None] * 3, [values] * 3)
    for tensor, place in LAYOUT.slices():
        matrix = values[place].astype(np.float64)
        if tensor.name in ("conv", "weight"):
            matrix = matrix.reshape(tensor.shape[0], -1)
            start = query[place][: matrix.shape[1] * RANK].reshape(-1, RANK)
            left = np.linalg.qr(matrix @ start)[0]
            expected = (left @ (left.T @ matrix)).reshape(-1)
            span = np.linalg.qr(matrix.T @ left)[0]
            found = following[place][: matrix.shape[1] * RANK].reshape(-1, RANK)
            assert np.allclose(span @ (span.T @ found), found, atol=1e-5)
        else:
            expected = matrix
        assert np.allclose(change[place], expected, atol=2e-5)
        assert np.allclose(kept[0][place], matrix.reshape(-1) - expected, atol=2e-5)


def test_mean_of_the_reconstructions_is_the_aggregate():
    # Equal norms: nobody is clipped, and the mean is a plain one.
    changes = [gaussian() * s for s in np.float32([1, -1, 1])]
    change, _, _, says, _ = round_of(CODEC, LAYOUT, CODEC.query(LAYOUT, 1), [None] * 3, changes, weights=(1, 2, 4))
    expected = sum(w * says[p].astype(np.float64) for p, w in zip(PEERS, (1, 2, 4), strict=True)) / 7
    assert np.abs(change - expected).max() < 100 * UNIT


def test_residuals_and_changes_add_up_to_all_that_was_wanted():
    """Over 12 rounds, Σ u = Σ P^ Q^T + e for each peer, and in the mean the aggregates are what was sent."""
    query, residuals = CODEC.query(LAYOUT, 1), [None] * 3
    wanted, sent = np.zeros((3, LAYOUT.size)), np.zeros((3, LAYOUT.size))
    for number in range(12):
        changes = [gaussian(seed=100 * number + i) for i in range(3)]
        _, query, residuals, says, _ = round_of(CODEC, LAYOUT, query, residuals, changes)
        wanted += changes
        sent += [says[p] for p in PEERS]
    assert np.abs(wanted - sent - np.array(residuals)).max() < 2e-5


def test_residual_is_exactly_what_the_payload_does_not_say():
    values = gaussian()
    _, _, kept, says, _ = round_of(CODEC, LAYOUT, CODEC.query(LAYOUT, 1), [None] * 3, [values] * 3)
    assert np.array_equal(kept[0], values - says[PEERS[0]])


def test_residual_decays():
    codec, query = LowRankCodec(RANK, 0.5), CODEC.query(LAYOUT, 1)
    residual, values = gaussian(seed=1), gaussian(seed=2)
    unsent, _ = codec.starting(query).encode(residual, values, LAYOUT, about(BASIS))
    assert np.array_equal(unsent, np.float32(0.5) * residual + values)


def test_what_a_peer_changes_between_the_phases_is_sent_in_the_second():
    """Nothing decays there, and one that was not in phase 0 takes part with what it has."""
    codec, early, late = LowRankCodec(RANK, 0.5), gaussian(seed=1), gaussian(seed=2)
    unsent, one = codec.starting(codec.query(LAYOUT, 1)).encode(None, early, LAYOUT, about(BASIS))
    basis = codec.basis(codec.decode(one, LAYOUT, about(BASIS)), LAYOUT)
    for residual, wanted in ((unsent, early + late), (None, late)):
        left, two = codec.starting(basis).encode(residual, late, LAYOUT, about(FACTOR))
        said = codec.restored(basis, codec.decode(two, LAYOUT, about(FACTOR)), LAYOUT)
        assert np.array_equal(left, wanted - said)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_round_has_the_same_bits_whatever_the_order_of_arrival(order):
    changes = [gaussian(seed=i) for i in range(3)]
    query = CODEC.query(LAYOUT, 1)
    one = round_of(CODEC, LAYOUT, query, [None] * 3, changes, weights=(1, 5, 2))
    other = round_of(CODEC, LAYOUT, query, [None] * 3, changes, weights=(1, 5, 2), order=order)
    assert one[0].tobytes() == other[0].tobytes()
    assert one[1].tobytes() == other[1].tobytes()


def test_phase_1_accepts_a_subset_and_the_peer_that_left_keeps_everything():
    changes = [gaussian(seed=i) for i in range(3)]
    query = CODEC.query(LAYOUT, 1)
    change, following, kept, says, _ = round_of(CODEC, LAYOUT, query, [None] * 3, changes, stayed=[0, 2])
    assert np.array_equal(kept[1], changes[1])
    assert set(says) == {PEERS[0], PEERS[2]}
    assert np.isfinite(change).all()
    again = round_of(CODEC, LAYOUT, following, kept, [np.zeros_like(c) for c in changes])
    assert np.allclose(again[2][1] + again[3][PEERS[1]], changes[1], atol=1e-6)


def test_peers_that_left_do_not_enter_what_is_applied():
    """Their phase 0 chose the basis; nothing of theirs is in the change, one-dimensional tensors included."""
    changes = [gaussian(seed=i) for i in range(3)]
    change, _, _, says, _ = round_of(CODEC, LAYOUT, CODEC.query(LAYOUT, 1), [None] * 3, changes, stayed=[2])
    assert np.abs(change - says[PEERS[2]]).max() < 100 * UNIT
    assert np.abs(change[:7] - changes[2][:7]).max() <= UNIT


def captured(matrix, left):
    return np.linalg.norm(left.T @ matrix) ** 2 / np.linalg.norm(matrix) ** 2


def test_warm_start_comes_close_to_the_best_approximation_of_its_rank():
    """A slowly falling spectrum, hence hard; numpy.linalg.svd is the judge (paper, section 4.2 and figure 2)."""
    n, m, rank, rounds = 48, 80, 4, 8
    random = np.random.default_rng(5)
    u, v = np.linalg.qr(random.standard_normal((n, n)))[0], np.linalg.qr(random.standard_normal((m, n)))[0]
    spectrum = 0.8 ** np.arange(n)
    matrix = (u * spectrum) @ v.T
    layout, codec = (TensorLayout.of({"w": (n, m)}), LowRankCodec(rank, 0.0))  # no feedback: the same matrix each round
    query, energies = codec.query(layout, 1), []
    for _ in range(rounds):
        values = matrix.astype(np.float32).reshape(-1)
        _, query, _, _, basis = round_of(codec, layout, query, [None] * 3, [values] * 3)
        energies.append(captured(matrix, basis[: n * rank].reshape(n, rank).astype(np.float64)))
    best = captured(matrix, np.linalg.svd(matrix)[0][:, :rank])
    cold = codec.query(layout, 1)
    lone = captured(matrix, np.linalg.qr(matrix @ cold[: m * rank].reshape(m, rank))[0])
    assert energies[0] == pytest.approx(lone, rel=1e-5)  # the first round is one step from random signs
    assert energies[0] < 0.97 * best
    assert energies[-1] > 0.995 * best
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(energies))


def test_warm_start_recovers_from_rounds_in_which_a_tensor_did_not_change():
    layout, codec = TensorLayout.of({"w": (30, 20)}), LowRankCodec(3, 1.0)
    query, zero = codec.query(layout, 1), np.zeros(600, np.float32)
    for _ in range(3):
        change, query, _, _, _ = round_of(codec, layout, query, [None] * 3, [zero] * 3)
        assert not change.any()
    random = np.random.default_rng(3)
    single = np.outer(random.standard_normal(30), random.standard_normal(20)).astype(np.float32)
    for _ in range(2):  # rank one: two columns of three vanish
        change, query, _, _, _ = round_of(codec, layout, query, [None] * 3, [single.reshape(-1)] * 3)
        assert np.allclose(change.reshape(30, 20), single, atol=1e-5)
    full = (random.standard_normal((30, 3)) @ random.standard_normal((3, 20))).astype(np.float32)
    for _ in range(4):
        change, query, _, _, _ = round_of(codec, layout, query, [None] * 3, [full.reshape(-1)] * 3)
    assert np.allclose(change.reshape(30, 20), full, atol=1e-4)


def test_encoding_does_not_change_its_arguments_and_can_be_repeated():
    values, residual, query = gaussian(), gaussian(seed=1), CODEC.query(LAYOUT, 1)
    basis = CODEC.basis(CODEC.decode(PAYLOADS[BASIS], LAYOUT, about(BASIS)), LAYOUT)
    for phase, public in ((BASIS, query), (FACTOR, basis)):
        copies = [x.copy() for x in (values, residual, public)]
        left, one = CODEC.starting(public).encode(residual, values, LAYOUT, about(phase))
        again, two = CODEC.starting(public).encode(residual, values, LAYOUT, about(phase))
        assert one == two
        assert left.tobytes() == again.tobytes()
        assert all(np.array_equal(a, b) for a, b in zip((values, residual, public), copies, strict=True))


def payloads():
    unsent, one = CODEC.starting(CODEC.query(LAYOUT, 1)).encode(None, gaussian(), LAYOUT, about(BASIS))
    basis = CODEC.basis(CODEC.decode(one, LAYOUT, about(BASIS)), LAYOUT)
    nothing = np.zeros_like(unsent)
    return [one, CODEC.starting(basis).encode(unsent, nothing, LAYOUT, about(FACTOR))[1]]


PAYLOADS = payloads()


def test_lengths_are_exact():
    assert CODEC.bound(LAYOUT) == max(map(len, PAYLOADS))
    assert CODEC.expect(LAYOUT) == sum(map(len, PAYLOADS)) / 2


@settings(max_examples=400)
@given(st.sampled_from([BASIS, FACTOR]), st.randoms(use_true_random=False), st.integers(0, 3))
def test_decoder_is_total(phase, random, kind):
    data = bytearray(PAYLOADS[phase])
    for _ in range(random.randint(0, 4)):
        data[random.randrange(len(data))] = random.randrange(256)
    if kind == 1:
        del data[random.randrange(len(data)) :]
    elif kind == 2:
        data += random.randbytes(random.randint(1, 9))
    elif kind == 3:
        at = HEADER_BYTES + 4 * random.randrange((len(data) - HEADER_BYTES) // 4)
        data[at + 2 : at + 4] = random.choice([b"\x80\x7f", b"\xc0\x7f", b"\x80\xff"])
    try:
        values = CODEC.decode(bytes(data), LAYOUT, about(phase))
    except ProtocolError:
        pass  # any other exception fails the test
    else:
        assert kind == 0
        assert np.isfinite(values).all()
        assert values.shape == (LAYOUT.size,)


def test_payload_of_one_phase_is_none_of_the_other():
    for phase in (BASIS, FACTOR):
        with pytest.raises(ProtocolError):
            CODEC.decode(PAYLOADS[phase], LAYOUT, about(1 - phase))
    square, codec = TensorLayout.of({"w": (30, 30)}), LowRankCodec(2, 1.0)  # of the same length in both
    public = codec.starting(codec.query(square, 1))
    one = public.encode(None, gaussian(square), square, about(BASIS))[1]
    with pytest.raises(ProtocolError) as caught:
        codec.decode(one, square, about(FACTOR))
    assert caught.value.code == "FF-COMP-007"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("phase", [BASIS, FACTOR])
def test_values_that_are_not_finite_are_refused_by_name(bad, phase):
    values, public = gaussian(), CODEC.starting(CODEC.query(LAYOUT, 1))
    values[-1] = bad
    with pytest.raises(RunError, match="'weight'") as caught:
        public.encode(None, values, LAYOUT, about(phase))
    assert caught.value.code == "FF-COMP-020"


def test_sums_beyond_float32_are_refused_rather_than_sent():
    layout = TensorLayout.of({"w": (30, 30)})
    query = CODEC.query(layout, 1)
    # Times the first column: 3e38 of its 1-norm.
    row = np.copysign(np.float32(3e38), query[: 30 * RANK : RANK])
    with pytest.raises(RunError) as caught:
        CODEC.starting(query).encode(None, np.tile(row, 30), layout, about(BASIS))
    assert caught.value.code == "FF-COMP-020"


def test_wrong_shapes_are_refused():
    whole, short = gaussian(), gaussian()[1:]
    for call in (
        lambda: CODEC.starting(whole).encode(None, short, LAYOUT, about(BASIS)),
        lambda: CODEC.starting(whole).encode(short, whole, LAYOUT, about(BASIS)),
        lambda: CODEC.starting(short).encode(None, whole, LAYOUT, about(FACTOR)),
        lambda: CODEC.basis(short, LAYOUT),
        lambda: CODEC.change(short, whole, LAYOUT),
        lambda: CODEC.change(whole, short, LAYOUT),
    ):
        with pytest.raises(VerificationError) as caught:
            call()
        assert caught.value.code == "FF-COMP-021"


def test_phases_that_do_not_exist_and_starts_from_nothing_are_refused():
    for call in (
        lambda: CODEC.starting(gaussian()).encode(None, gaussian(), LAYOUT, about(2)),
        lambda: CODEC.encode(None, gaussian(), LAYOUT, about(BASIS)),
        lambda: CODEC.decode(PAYLOADS[0], LAYOUT, about(7)),
    ):
        with pytest.raises(VerificationError) as caught:
            call()
        assert caught.value.code == "FF-COMP-047"


@pytest.mark.parametrize("rank", [0, -1, 1 << 20])
def test_rank_out_of_range_is_refused(rank):
    with pytest.raises(SpecError) as caught:
        LowRankCodec(rank, 1.0)
    assert caught.value.code == "FF-COMP-045"


def test_model_without_a_matrix_that_gains_is_refused():
    with pytest.raises(SpecError) as caught:
        CODEC.query(TensorLayout.of({"b": (9,), "w": (3, 3)}), 1)
    assert caught.value.code == "FF-COMP-046"
    with pytest.raises(SpecError):
        CODEC.bound(TensorLayout.of({"b": (9,)}))
