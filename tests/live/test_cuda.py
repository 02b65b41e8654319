"""Plans as programs of streams, issued to a stand-in for GPUs: its streams do at once what they are
told, on the CPU, so that the numbers must be those of one device, bit for bit.

Needs torch (no GPU): without it these tests are skipped. What needs a GPU is skipped without one.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import STEPS, differing, made, trained  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.running.devices.crew import RunSettings  # noqa: E402
from loadmaster.running.devices.cuda import Cuda  # noqa: E402
from loadmaster.running.devices.places import DevicePlace, place_of  # noqa: E402
from loadmaster.running.devices.wiring import Wiring  # noqa: E402
from loadmaster.running.parallel.replicas import replicated  # noqa: E402
from loadmaster.running.run import started  # noqa: E402


class Stream:
    """Does what it is told at once, and knows which events it has waited for."""

    def wait_event(self, event):
        assert event.recorded, "a stream waits for an event that nobody has recorded"


class Event:
    def __init__(self):
        self.recorded = None

    def record(self, stream):
        self.recorded = time.perf_counter()

    def elapsed_time(self, later):
        return (later.recorded - self.recorded) * 1e3


class StandIn:
    """GPUs that are not there."""

    def __init__(self, n_devices, is_shared=False):
        self.devices = [torch.device("cpu")] * n_devices
        self.is_shared = is_shared
        self.paced = []

    def stream(self, stream):
        return Stream()

    def within(self, stream):
        return nullcontext()

    def event(self, timed):
        return Event()

    def keep(self, tensor, stream):
        assert isinstance(tensor, torch.Tensor)

    def settle(self, stream, device):
        pass

    def pace(self, stream, seconds):
        self.paced.append(seconds)

    def finish(self):
        pass


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def taped(name, optimizer=torch.optim.Adam):
    model, inputs, targets = made(name)
    tape = lm.record(model, inputs, loss=F.cross_entropy, targets=targets, optimizer=optimizer)
    return tape, (model, inputs, targets)


def on_stand_ins(plan, tape, **options):
    n = plan.cluster.n_devices
    return Cuda(
        Wiring(plan, tape), RunSettings([DevicePlace("cuda", (0,))] * n), StandIn(n, **options)
    )


def cluster(k):
    return lm.Cluster.preset("4xV100-PCIe").subset(range(k))


@pytest.mark.parametrize("name", STEPS)
def test_what_is_issued_gives_the_numbers_of_one_device(name):
    tape, given = taped(name)
    expected, _ = trained(*given, torch.optim.Adam, 2, tape)
    with on_stand_ins(lm.place(tape.graph, cluster(3), "random"), tape) as devices:
        devices.run(1)
        devices.run(1)
        assert differing(expected, devices.fetch()) == []


def test_replicas_add_up_what_all_of_them_bring():
    model, inputs, targets = made("tied")
    inputs = torch.cat([(inputs + 3 * i) % 50 for i in range(2)])
    targets = torch.cat([(targets + 7 * i) % 10 for i in range(2)])
    options = {"loss": F.cross_entropy, "targets": targets, "optimizer": torch.optim.Adam}
    tape = lm.record(model, inputs, **options)
    plan = lm.place(tape.graph, cluster(2), "data-parallel")
    replicas = replicated(plan.program, tape)
    with on_stand_ins(plan, replicas) as devices:
        steps = devices.run(2)
        assert differing(replicas.replay(2), devices.fetch()) == []
    assert len(plan.schedule.collectives) > 0
    assert (steps.gathered_finish > steps.gathered_start).all()


def test_what_is_measured_has_a_row_per_op_and_transfer():
    tape, _ = taped("cells")
    plan = lm.place(tape.graph, cluster(3), "random")
    with on_stand_ins(plan, tape) as devices:
        steps = devices.run(2, memory=True)
    seen = lm.Measured(plan, steps, ("cuda:0",) * 3)
    assert seen.step > 0
    assert len(seen.timeline.transfers) == len(plan.schedule.transfers)
    data = plan.schedule.transfers.tensor >= 0
    assert (np.diff(np.stack([steps.sent_start, steps.sent_finish])[:, :, data], axis=0) > 0).all()


def test_links_between_parts_of_one_gpu_are_paced():
    tape, _ = taped("cells")
    plan = lm.place(tape.graph, cluster(2), "random")
    with on_stand_ins(plan, tape, is_shared=True) as devices:
        devices.run(1)
        sent = plan.schedule.transfers
        data = sent.tensor >= 0
        wanted = (sent.finish - sent.start)[data]
        assert sorted(devices._gpus.paced) == pytest.approx(sorted(wanted.tolist()))


def test_an_op_that_fails_is_named():
    tape, _ = taped("cells")
    plan = lm.place(tape.graph, cluster(2), "single")
    with on_stand_ins(plan, tape) as devices:
        op = next(iter(devices._devices[0].calls))
        call, _ = devices._devices[0].calls[op]

        def fails(values):
            raise ValueError("no such kernel")

        devices._devices[0].calls[op] = call, fails
        with pytest.raises(
            lm.errors.RunError, match=r"op '.*' on gpu0: ValueError: no such kernel"
        ):
            devices.run(1)


def test_places_on_gpus_are_read_and_checked():
    assert str(place_of("cuda:1")) == "cuda:1"
    with pytest.raises(lm.InputError, match="a device is one GPU"):
        place_of("cuda:0-1")
    if not torch.cuda.is_available():
        tape, _ = taped("cells")
        plan = lm.place(tape.graph, cluster(2), "single")
        with pytest.raises(lm.InputError, match="sees 0 GPUs"):
            started(plan, tape, on={"gpu0": "cuda:0", "gpu1": "cuda:1"})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", STEPS)
def test_a_gpu_gives_the_numbers_of_one_device(name):
    """To rounding: kernels of a GPU sum in another order than a CPU's. Not yet run on a GPU."""
    tape, _ = taped(name)
    alone = tape.replay(2)
    plan = lm.place(tape.graph, cluster(2), "random")
    with started(plan, tape, on={"gpu0": "cuda:0", "gpu1": "cuda:0"}) as devices:
        devices.run(2)
        found = devices.fetch()
    for output, value in alone.items():
        torch.testing.assert_close(found[output], value, rtol=1e-3, atol=1e-4)
