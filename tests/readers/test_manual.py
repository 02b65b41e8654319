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


def test_axes_in_parts_are_refused(tmp_path):
    path = tmp_path / "parts.mlir"
    path.write_text(TEXT.replace("SUM", ALONE).replace('[{"data"}, {}]', '[{"data":(1)2}, {}]'))
    with pytest.raises(lm.InputError, match=r"line 5: .* cuts parts of axes"):
        lm.read(path)
