"""Five steps of a small network have the bits that stand here: on any processor and threads, compiled or not."""

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from canon_graphs import Builder
from canon_process import said

from farflung.core.canon.array_operations import canonical_bytes
from farflung.core.canon.graph import CanonicalGraph, graph_id
from farflung.core.canon.operation_rules import F32
from farflung.verify.canon.execute import execute

BATCH, WIDTH, HIDDEN, CLASSES = 70, 12, 33, 5
GRAPH = "8d7b49b2bca8b8aad08ebb95f4ea324983046c7ec2c17b9d0825424027fba8b8"
FIRST = "77934d9345a31b0bea181d51f41bf1f5b2fa513dd1b8c9d6e84f439c9deb5741"
FIFTH = "1a0da958ab929b39bafd0a49aeb17736de108e159a344e4288153726debd86f2"


class Network(Builder):
    """What a step of two layers needs, in operations of a canonical graph."""

    def product(self, left: int, right: int) -> int:
        """[M, K] x [K, N]."""
        sides = [(1, *self.of(each).shape) for each in (left, right)]
        made = self.add("matmul", self.reshape(left, sides[0]), self.reshape(right, sides[1]))
        return self.reshape(made, self.of(made).shape[1:])

    def column(self, arg: int) -> int:
        """[R] → [R, 1]."""
        return self.reshape(arg, (*self.of(arg).shape, 1))

    def over_rows(self, arg: int) -> int:
        """[R, C] → [C]."""
        return self.add("sum", self.transpose(arg))

    def step(self) -> CanonicalGraph:
        """softmax(tanh(x w1 + b1) w2 + b2), its mean loss, the gradient by hand, and a step of SGD."""
        w1, b1 = self.input("w1", F32, (WIDTH, HIDDEN)), self.input("b1", F32, (HIDDEN,))
        w2, b2 = self.input("w2", F32, (HIDDEN, CLASSES)), self.input("b2", F32, (CLASSES,))
        x, is_y = self.input("x", F32, (BATCH, WIDTH)), self.input("is_y", F32, (BATCH, CLASSES))
        rate = self.input("rate", F32, ())
        h = self.add("tanh", self.add("add", self.product(x, w1), b1))
        z = self.add("add", self.product(h, w2), b2)
        e = self.add("exp", self.add("sub", z, self.column(self.add("max", z))))
        p = self.add("div", e, self.column(self.add("sum", e)))
        each = self.add("neg", self.add("sum", self.add("mul", is_y, self.add("log", p))))
        count = self.const(BATCH)
        loss = self.add("div", self.add("sum", each), count)
        dz = self.add("div", self.add("sub", p, is_y), count)
        slope = self.add("sub", self.const(1.0), self.add("mul", h, h))
        da = self.add("mul", self.product(dz, self.transpose(w2)), slope)
        gradients = {
            "w1": (w1, self.product(self.transpose(x), da)), "b1": (b1, self.over_rows(da)),
            "w2": (w2, self.product(self.transpose(h), dz)), "b2": (b2, self.over_rows(dz)),
        }  # fmt: skip
        moved = {
            name: self.add("sub", param, self.add("mul", rate, gradient))
            for name, (param, gradient) in gradients.items()
        }
        return self.graph(**moved, loss=loss)


def whole(shape, step: int) -> np.ndarray:
    """Sixteenths between -1 and 1, from whole numbers alone: no library draws them."""
    count = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((count * step) % 33 - 16).astype(np.float32) * np.float32(1 / 16)).reshape(shape)


def trained(steps: int) -> list[dict[str, np.ndarray]]:
    """The state after each step."""
    graph = Network().step()
    state = {"w1": whole((WIDTH, HIDDEN), 7), "b1": whole((HIDDEN,), 5)}
    state |= {"w2": whole((HIDDEN, CLASSES), 13), "b2": whole((CLASSES,), 3)}
    is_y = np.zeros((BATCH, CLASSES), np.float32)
    is_y[np.arange(BATCH), np.arange(BATCH) * 7 % CLASSES] = 1.0
    fixed = {"x": whole((BATCH, WIDTH), 19), "is_y": is_y, "rate": np.array(0.5, np.float32)}
    states = []
    for _ in range(steps):
        state = execute(graph, {**fixed, **{name: state[name] for name in ("w1", "b1", "w2", "b2")}})
        states.append(state)
    return states


def digests() -> list[str]:
    """The state after steps 1 and 5."""
    states = trained(5)
    return [
        blake3(b"".join(canonical_bytes(state[name]) for name in sorted(state))).hexdigest()
        for state in (states[0], states[4])
    ]


def test_the_graph_itself_has_not_changed():
    assert graph_id(Network().step()).hex() == GRAPH


def test_five_steps_have_the_bits_that_stand_here():
    assert digests() == [FIRST, FIFTH]


def test_the_network_learns():
    losses = [float(state["loss"]) for state in trained(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 0.1


def in_a_process(form: str, cpu: str = "", features: str = "", **environment: str) -> str:
    """The digests that a process computes by NumPy's forms or the compiled ones, for a processor if one is named."""
    code = "from farflung.verify.canon.tensor_kernels import KERNELS as K, PRODUCTS as P; "
    code += f"K.settled = P.settled = {form!r}; "
    if cpu:
        code += "from farflung.verify.canon.product_kernel import Product; "
        code += f"P.loops = {{'matmul': Product({cpu!r}, {features!r})}}; "
    code += "print(*t.digests(), bool(P.loops) and {*K.twins, *P.twins} == {*K.loops, *P.loops})"
    return said(__name__, code, **environment)


def dispatched() -> list[str]:
    """The vector instructions that NumPy would choose here beyond those that it was built for."""
    umath = np._core._multiarray_umath
    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]


def test_the_plainest_instructions_of_numpy_give_the_same_bits():
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched()), "OMP_NUM_THREADS": "1"}
    assert in_a_process("numpy", **plain) == f"{FIRST} {FIFTH} False"


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "left"), [("4", 0), ("1", 1)])
def test_numbers_of_threads_and_vectors_change_no_bit_of_numpy(threads, left):
    environment = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched()[left:]), "OMP_NUM_THREADS": threads}
    assert in_a_process("numpy", **environment) == f"{FIRST} {FIFTH} False"


@pytest.mark.extra(name="kernels")
@pytest.mark.parametrize("processor", ["", "generic", "haswell"])
def test_compiled_loops_give_the_same_bits(processor):
    pytest.importorskip("numba", reason="the extra `fast` is not installed: no numba")
    if processor == "haswell" and "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor cannot run code for haswell")
    features = "+avx2,+fma,+bmi2" if processor == "haswell" else ""
    environment = {"NUMBA_NUM_THREADS": "1" if processor else "2"}
    if processor:
        environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    assert in_a_process("numba", processor, features, **environment) == f"{FIRST} {FIFTH} True"
