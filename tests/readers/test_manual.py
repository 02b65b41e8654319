"""What is mapped over a mesh by hand: views say what every device has, as slices say it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.readers.xla.manual import Manual


def drawn(seed):
    """A mesh of which some axes are mapped over, an array, and how it lies on them."""
    draw = random.Random(seed)
    mesh = {name: draw.choice((1, 2, 3)) for name in "xyz"}
    names = sorted(draw.sample(list(mesh), draw.randint(1, 3)))
    sharding = [[] for _ in range(draw.randint(1, 3))]
    for name in draw.sample(names, draw.randint(0, len(names))):
        draw.choice(sharding).append(name)
    shape = [draw.choice((1, 2)) * int(np.prod([mesh[n] for n in cut])) for cut in sharding]
    return Manual(mesh, names), np.arange(np.prod(shape)).reshape(shape), sharding


def after(array, steps):
    """What views make of an array."""
    for kind, keywords, sizes in steps:
        if kind == "transpose":
            array = array.transpose(keywords["dims"])
        elif kind == "slice":
            array = array[tuple(slice(*ends) for ends in keywords["slice"])]
        elif kind == "broadcast_in_dim":
            ones = [1] * len(sizes)
            for axis, size in zip(keywords["dims"], array.shape, strict=True):
                ones[axis] = size
            array = np.broadcast_to(array.reshape(ones), sizes)
        else:
            array = array.reshape(sizes)
        assert array.shape == tuple(sizes)
    return array


def part_of(array, manual, sharding, where):
    """The part of a device, whose place on each axis of the mesh is known."""
    for axis, names in enumerate(sharding):
        k, place = 1, 0
        for name in names:
            k, place = k * manual.mesh[name], place * manual.mesh[name] + where[name]
        array = np.split(array, k, axis)[place]
    return array


def places(manual):
    return [
        dict(zip(manual.names, at, strict=True))
        for at in itertools.product(*map(range, manual.sizes))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_every_device_has_its_part_and_parts_are_the_whole(seed):
    manual, array, sharding = drawn(seed)
    parts = after(array, manual.entering(array.shape, sharding))
    for where in places(manual):
        expected = part_of(array, manual, sharding, where)
        np.testing.assert_array_equal(parts[tuple(where.values())], expected)
    np.testing.assert_array_equal(after(parts, manual.leaving(array.shape, sharding)), array)


@pytest.mark.parametrize("seed", range(60))
def test_gathers_join_parts_and_scatters_take_them_apart(seed):
    manual, array, sharding = drawn(seed)
    draw = random.Random(seed)
    axes = sorted(draw.sample(range(len(manual.names)), draw.randint(1, len(manual.names))))
    dim, concat = draw.randrange(array.ndim), draw.randrange(array.ndim)
    parts = after(array, manual.entering(array.shape, sharding))
    shape = parts.shape[len(manual.names) :]
    joined = after(parts, manual.gathering(shape, axes, dim))
    summed = parts.sum(tuple(axes))
    spread = after(summed, manual.spreading(shape, axes))
    k = int(np.prod([manual.sizes[i] for i in axes]))
    for at in itertools.product(*map(range, manual.sizes)):
        group = [
            tuple(some[axes.index(i)] if i in axes else at[i] for i in range(len(at)))
            for some in itertools.product(*(range(manual.sizes[i]) for i in axes))
        ]
        expected = np.concatenate([parts[one] for one in group], dim)
        np.testing.assert_array_equal(joined[at], expected)
        np.testing.assert_array_equal(spread[at], sum(parts[one] for one in group))
        if shape[dim] % k == 0:
            scattered = after(summed, manual.scattering(shape, axes, dim))
            mine = np.split(spread[at], k, dim)[group.index(at)]
            np.testing.assert_array_equal(scattered[at], mine)
            exchanged = after(parts, manual.exchanging(shape, axes, dim, concat))
            pieces = [np.split(parts[one], k, dim)[group.index(at)] for one in group]
            np.testing.assert_array_equal(exchanged[at], np.concatenate(pieces, concat))


def test_groups_of_devices_lie_along_axes_of_the_mesh():
    manual = Manual({"x": 2, "y": 3, "z": 2}, ("x", "z"))
    assert manual.axes_of([[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]) == (0,)
    assert manual.axes_of([[7, 6, 1, 0], [2, 3, 8, 9], [4, 5, 10, 11]]) == (0, 1)
    assert manual.axes_of([[0, 2], [1, 3]]) is None


TEXT = """
module @mapped {
  sdy.mesh @mesh = <["data"=4]>
  func.func public @main(%w: tensor<64x32xf32>, %x: tensor<4096x64xf32>) -> tensor<4096x32xf32> {
    %0 = sdy.manual_computation(%w, %x) in_shardings=[<@mesh, [{}, {}]>, <@mesh, [{"data"}, {}]>] out_shardings=[<@mesh, [{"data"}, {}]>] manual_axes={"data"} (%a: tensor<64x32xf32>, %b: tensor<1024x64xf32>) {
      %1 = stablehlo.dot_general %b, %a, contracting_dims = [1] x [0] : (tensor<1024x64xf32>, tensor<64x32xf32>) -> tensor<1024x32xf32>
      SUM
      sdy.return %2 : tensor<1024x32xf32>
    } : (tensor<64x32xf32>, tensor<4096x64xf32>) -> tensor<4096x32xf32>
    return %0 : tensor<4096x32xf32>
  }
}
"""  # noqa: E501
ALONE = "%2 = stablehlo.tanh %1 : tensor<1024x32xf32>"
SUM = """%2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%c: tensor<f32>, %d: tensor<f32>):
        %3 = stablehlo.add %c, %d : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1024x32xf32>) -> tensor<1024x32xf32>"""  # noqa: E501


@pytest.mark.parametrize(("last", "sums"), [(ALONE, False), (SUM, True)])
def test_a_computation_that_is_mapped_counts_on_all_devices_and_is_shared(last, sums, tmp_path):
    path = tmp_path / "mapped.mlir"
    path.write_text(TEXT.replace("SUM", last))
    graph = lm.read(path)
    dot = graph.kinds.index("stablehlo.dot_general")
    assert graph.flops[dot] == 2 * 4096 * 64 * 32
    assert graph.outputs[dot] == "f32[4,1024,32]"
    plan = lm.place(graph, lm.Cluster.preset("4xV100-NVLink").with_speed(1e-3), target="jax", tp=1)
    assert plan.makespan < 0.6 * plan.single
    assert plan.program.graph.is_member.any() == sums


def test_pairs_of_devices_lie_along_one_axis_of_the_mesh():
    for seed in range(20):
        draw = random.Random(seed)
        manual, _, _ = drawn(seed)
        axis = draw.randrange(len(manual.names))
        size = manual.sizes[axis]
        sent = drawn_pairs(draw, size)
        devices = np.arange(np.prod(list(manual.mesh.values()))).reshape(*manual.mesh.values())
        rows = np.moveaxis(devices, list(manual.mesh).index(manual.names[axis]), -1)
        pairs = [[row[a], row[b]] for row in rows.reshape(-1, size).tolist() for a, b in sent]
        found = manual.places_of(pairs)
        # What stays where it is lies along any axis.
        stays = all(a == b for a, b in sent)
        assert found == (axis, sorted(sent)) or (found and stays), (manual, pairs)
    assert Manual({"x": 2, "y": 2}, ("x", "y")).places_of([[0, 3], [1, 2]]) is None


def drawn_pairs(draw, size):
    """Places that send, and those that they send to, each once."""
    n = draw.randint(1, size)
    return list(zip(draw.sample(range(size), n), draw.sample(range(size), n), strict=True))


PERMUTE = """%p = "stablehlo.collective_permute"(%1) <{source_target_pairs = dense<PAIRS> : tensor<4x2xi64>}> : (tensor<1024x32xf32>) -> tensor<1024x32xf32>
      %2 = stablehlo.tanh %p : tensor<1024x32xf32>"""  # noqa: E501
LOOP = """%c = stablehlo.constant dense<0> : tensor<i32>
      %l:2 = stablehlo.while(%i = %c, %q = %1) : tensor<i32>, tensor<1024x32xf32>
      cond {
        %five = stablehlo.constant dense<5> : tensor<i32>
        %6 = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %6 : tensor<i1>
      } do {
        %7 = "stablehlo.collective_permute"(%q) <{source_target_pairs = dense<PAIRS> : tensor<4x2xi64>}> : (tensor<1024x32xf32>) -> tensor<1024x32xf32>
        %8 = stablehlo.tanh %7 : tensor<1024x32xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %9 = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %9, %8 : tensor<i32>, tensor<1024x32xf32>
      }
      %2 = stablehlo.tanh %l#1 : tensor<1024x32xf32>"""  # noqa: E501


@pytest.mark.parametrize(("body", "trips"), [(PERMUTE, 1), (LOOP, 5)])
def test_what_devices_send_each_other_is_priced_pair_by_pair(body, trips, tmp_path):
    hosts = lm.Cluster.new("2xH100", "nvlink", hosts=2, network="25GbE").with_speed(1e-5)
    seconds = {}
    for seed in range(4):
        pairs = drawn_pairs(random.Random(seed), 4) if seed else [(0, 1), (1, 2), (2, 3), (3, 0)]
        path = tmp_path / "mapped.mlir"
        said = str([list(pair) for pair in pairs])
        path.write_text(TEXT.replace("SUM", body.replace("PAIRS", said)))
        plan = lm.place(lm.read(path), hosts, target="jax", tp=1)
        graph, rank = plan.program.graph, plan.program.rank
        sent = [op for op, name in enumerate(graph.names) if name.startswith("slice/")]
        assert {int(graph.output_bytes[op]) for op in sent} <= {trips * 1024 * 32 * 4}
        ends = {
            (int(rank[op]), int(rank[to]))
            for op in sent
            for to in graph.dst[graph.src == op].tolist()
        }
        assert ends == {(a, b) for a, b in pairs if a != b}
        assert len(sent) == len(ends)
        seconds[seed] = plan.makespan
    for pairs in ([(0, 1), (1, 0)], [(0, 2), (2, 0)]):
        said = str([list(pair) for pair in pairs])
        path.write_text(TEXT.replace("SUM", body.replace("PAIRS", said)))
        seconds[pairs[0]] = lm.place(lm.read(path), hosts, target="jax", tp=1).makespan
    assert seconds[0, 1] < seconds[0, 2], "the other host is further away"


def test_axes_in_parts_are_refused(tmp_path):
    path = tmp_path / "parts.mlir"
    path.write_text(TEXT.replace("SUM", ALONE).replace('[{"data"}, {}]', '[{"data":(1)2}, {}]'))
    with pytest.raises(lm.InputError, match=r"line 5: .* cuts parts of axes"):
        lm.read(path)
