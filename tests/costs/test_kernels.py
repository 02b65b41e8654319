"""Times of ops from measured kernels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.costs import PROVENANCES, estimate
from loadmaster.costs.kernels import sustained
from loadmaster.costs.kernels.cutting import cut
from loadmaster.costs.kernels.families import FAMILIES
from loadmaster.costs.kernels.kin import MEASURED, Figures, nearest
from loadmaster.costs.kernels.kinds import family_of
from loadmaster.costs.kernels.seconds import has_kernels, part_seconds, whole_seconds
from loadmaster.costs.kernels.surface import Surface
from loadmaster.costs.kernels.tables import shipped
from loadmaster.costs.kernels.works import work_of
from loadmaster.costs.roofline import roofline, roofline_costs
from loadmaster.model.clusters.devices import DeviceType
from loadmaster.model.machine.types import known_types

BYTES = {"f32": 4, "bf16": 2}


def of(name):
    return known_types()[name].type


def product(m, n, k, dtype="bf16", batch=1):
    """A graph of one product, as PyTorch has it."""
    shape = f"{batch},{m},{n}" if batch > 1 else f"{m},{n}"
    kind = "aten.bmm.default" if batch > 1 else "aten.mm.default"
    return one_op(
        kind,
        f"{dtype}[{shape}]",
        2 * batch * m * n * k,
        BYTES[dtype] * batch * (m * k + k * n + m * n),
    )


def one_op(kind, output, flops, accessed):
    columns = {"kind": [kind], "output": [output], "flops": [flops], "bytes_accessed": [accessed]}
    return lm.OpGraph({"name": ["op"], **columns}, {"src": [], "dst": []})


def seconds(graph, name):
    return float(whole_seconds(graph, of(name)).seconds[0])


# -- values from the data ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "m", "n", "k", "dtype", "measured"),
    [
        # In a long step, 1.22 times what it takes alone.
        ("A100-SXM4-80GB", 2048, 8192, 1024, "bf16", 1.22 * 149.0e-6),
        # It waits for memory, which no clock slows.
        ("H100-SXM5-80GB", 16, 8192, 8192, "bf16", 48.1e-6),
        ("B200-180GB", 8192, 12288, 4096, "bf16", 524.3e-6),
        # These have 40 to 50 us of the host in them, which is not the device's.
        ("V100-PCIe-32GB", 1024, 5120, 1280, "f32", 1009e-6 - 51e-6),
        ("H100-SXM5-80GB", 1024, 5120, 1280, "f32", 460e-6 - 41e-6),
        ("T4-16GB", 1024, 5120, 1280, "f32", 3190e-6 - 39e-6),
    ],
)
def test_products_take_what_was_measured(device, m, n, k, dtype, measured):
    assert seconds(product(m, n, k, dtype), device) == pytest.approx(measured, rel=0.08)


def test_copies_of_a_gigabyte_reach_the_bandwidth_that_was_measured():
    # What each byte more takes: 1366 GB/s on an A100 of 1555, 833 on a V100 of 900, 244 on a T4 of
    # 320.
    copy = one_op("aten.relu.default", "f32[16777216]", 0, 2**27)
    for device, rate in (("A100-PCIe-40GB", 1366), ("V100-PCIe-32GB", 833), ("T4-16GB", 244)):
        assert 2**27 / seconds(copy, device) / 1e9 == pytest.approx(rate, rel=0.1)


# -- surfaces ---------------------------------------------------------------------------------


def test_a_surface_passes_near_its_sites_and_is_flat_outside():
    sites = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), -1).reshape(-1, 2)
    values = sites @ [0.5, -0.25]
    surface = Surface(sites, values)
    assert surface.at(sites) == pytest.approx(values, abs=0.05)
    assert surface.at(np.array([[3.5, 2.5]])) == pytest.approx([1.125], abs=0.05)
    outside = surface.at(np.array([[40.0, 0.0], [-40.0, 9.0]]))
    assert values.min() - 0.1 <= outside.min()
    assert outside.max() <= values.max() + 0.1


def test_a_point_has_its_value_whatever_is_asked_beside_it():
    generator = np.random.default_rng(3)
    surface = Surface(generator.uniform(0, 12, (500, 3)), generator.normal(size=500))
    points = generator.uniform(0, 12, (700, 3))
    together = surface.at(points)
    assert (surface.at(points[::-1])[::-1] == together).all()
    assert surface.at(points[5:6])[0] == together[5]


# -- properties -------------------------------------------------------------------------------

sizes = st.integers(4, 14).map(lambda power: 2**power)
devices = st.sampled_from(["A100-SXM4-80GB", "H100-SXM5-80GB", "L40S-48GB", "V100-PCIe-32GB"])


@settings(max_examples=20, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from(["bf16", "f32"]), devices)
def test_twice_the_work_takes_no_less(m, n, k, dtype, device):
    once = seconds(product(m, n, k, dtype), device)
    assert once > 0
    # Float32 was measured with the host's time, which hides how long short kernels take.
    least = 0.6 if dtype == "bf16" or once > 1e-4 else 0.4
    for larger in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert seconds(product(*larger, dtype), device) > least * once


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_quarter_of_the_rows_that_fill_a_device_takes_about_a_quarter(dtype):
    # Else no plan on several devices comes near the bound "work over capacity".
    generator = np.random.default_rng(5)
    ratios = []
    for _ in range(150):
        m, n, k = (int(2**power) for power in generator.uniform((14, 5, 5), (21, 12, 12)))
        device = generator.choice(["A100-SXM4-80GB", "H100-SXM5-80GB", "V100-PCIe-32GB"])
        quarter, whole = (seconds(product(rows, n, k, dtype), device) for rows in (m, 4 * m))
        ratios.append(4 * quarter / whole)
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)
    assert np.quantile(ratios, [0.1, 0.9]) == pytest.approx([1.0, 1.0], abs=0.2)


@settings(max_examples=20, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from([2, 4, 8]), st.sampled_from("mnk"), devices)
def test_a_part_is_priced_as_the_smaller_product_that_it_is(m, n, k, ways, along, device):
    whole = product(m, n, k)
    small = {"m": m, "n": n, "k": k}
    small[along] //= ways
    of_part = product(**small)
    cut_out = part_seconds(
        whole, np.array([0]), of_part.flops, of_part.bytes_accessed, of(device)
    ).seconds[0]
    # Sizes that are equal may be taken for each other.
    sides = {"m": m, "n": n, "k": k}
    rivals = [{**sides, each: sides[each] // ways} for each in sides]
    alike = [
        seconds(product(**rival), device)
        for rival in rivals
        if product(**rival).bytes_accessed[0] == of_part.bytes_accessed[0]
    ]
    assert any(cut_out == pytest.approx(each, rel=1e-6) for each in alike)


@pytest.mark.parametrize("family", ["products", "batched products", "convolutions"])
def test_sizes_of_parts_are_those_that_were_cut(family):
    whole = np.array([[16.0, 512.0, 256.0, 64.0]])
    share = np.array([1 / 8])
    least = FAMILIES[family].least
    for column in range(3 if family == "convolutions" else 4):
        part = whole.copy()
        part[:, column] /= 8
        # An endless peak: only the bytes count.
        reads = least(part, 1e30, 1.0, 4.0) / least(whole, 1e30, 1.0, 4.0)
        assert least(cut(family, whole, share, reads), 1e30, 1.0, 4.0) == pytest.approx(
            least(part, 1e30, 1.0, 4.0), rel=2e-3
        )


@pytest.mark.parametrize("preset", ["4xV100-PCIe", "8xH100-NVLink", "8xL40S-PCIe"])
def test_no_part_takes_longer_than_the_whole(preset):
    cluster = lm.Cluster.preset(preset)
    graph = lm.read("example:bert-large")
    plan = lm.place(graph, cluster, "data-parallel")
    program, costs = plan.problem.program, plan.problem.costs
    part = program.share < 1
    assert part.any()
    whole = estimate(graph, cluster).time[program.serves]
    assert (costs.time[part] <= whole[part] * (1 + 1e-12)).all()


def test_estimates_are_the_same_twice():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("8xH100-NVLink")
    assert (estimate(graph, cluster).time == estimate(lm.read("example:lenet"), cluster).time).all()


# -- families and kin -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *(("aten::addmm", "products"), ("BatchMatMulV2", "products"), ("dot_general", "products")),
        *(("stablehlo.convert", "other"), ("Conv2DBackpropInput", "convolutions")),
        *(("Softmax", "softmax"), ("LayerNormalization", "norm"), ("Gather", "gathers")),
        ("aten._scaled_dot_product_efficient_attention_backward.default", "attention"),
    ],
)
def test_kinds_of_every_framework_have_their_family(kind, family):
    assert family_of(kind) == family


def test_attention_is_read_from_its_output_its_flops_and_its_bytes():
    batch, heads, shared, length, dim = 2, 32, 8, 4096, 128
    flops = 4 * batch * heads * length * length * dim
    accessed = 2 * batch * length * dim * (2 * heads + 2 * shared)
    kind = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    output = f"bf16[{batch},{heads},{length},{dim}];f32[{batch},{heads},{length}]"
    work = work_of(kind, output, flops, accessed, causal=True)
    assert (work.family, work.sizes) == ("context", (2, 32, 8, 4096, 4096, 128, 0))
    assert work_of(kind, output, flops, accessed).family == "encoder"


def test_a_convolution_of_3x3_is_known_from_its_work():
    n, c, o, s = 32, 64, 128, 56
    flops, accessed = 18 * n * c * o * s * s, 4 * (n * s * s * (c + o) + 9 * c * o)
    work = work_of("aten.convolution.default", f"f32[{n},{o},{s},{s}]", flops, accessed)
    assert (work.family, work.sizes) == ("convolutions", (32, 64, 128, 56))
    accessed = 4 * (n * s * s * (c + o) + c * o)
    work = work_of("Conv", f"f32[{n},{o},{s},{s}]", flops // 9, accessed)
    assert (work.family, work.sizes) == ("windows", (1, n * s * s, o, c, n * s * s * c))


def test_an_op_of_no_family_keeps_the_roofline():
    graph = one_op("aten.lstm.input", "f32[64,1024]", 10**12, 10**6)
    each = whole_seconds(graph, of("V100-PCIe-32GB"))
    assert each.words == ["roofline"]
    assert each.seconds[0] == pytest.approx(1e12 / 14e12)


def test_the_kin_of_a_type_is_said():
    graph = product(4096, 4096, 4096)
    type_ = of("H800-SXM5-80GB")
    costs = estimate(graph, lm.Cluster.new("8xH800-SXM5-80GB"))
    assert has_kernels(type_)
    assert PROVENANCES[costs.provenance[0]] == "kernels of H100-SXM5-80GB"
    assert costs.time[0, 0] == estimate(graph, lm.Cluster.new("8xH100-SXM5-80GB")).time[0, 0]


def test_types_of_no_maker_that_was_measured_have_the_roofline():
    graph, own = product(64, 64, 64), DeviceType("gpu", {"f32": 1e12}, 1e9)
    assert not has_kernels(own)
    assert not has_kernels(of("EPYC-7313"))
    assert nearest("gpu", Figures(1.0, 1.0), {"H100-SXM5-80GB": Figures(1.0, 1.0)}) is None
    cluster = lm.Cluster.preset("m1-max")
    assert (estimate(graph, cluster).time[:, 0] == roofline(graph, cluster.types[0])).all()


def test_every_measured_type_is_a_word_of_provenance_and_the_tables_say_whose_they_are():
    tables = shipped()
    assert {fact["device"] for fact in tables.facts} == set(MEASURED)
    assert all(fact["source"] and fact["licence"] for fact in tables.facts)
    assert {f"kernels of {name}" for name in MEASURED} < set(PROVENANCES)


def test_costs_by_the_roofline_are_one_word_away():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, "single", costs="roofline")
    assert (plan.problem.costs.time == roofline_costs(graph, cluster).time).all()
    assert plan.makespan < lm.place(graph, cluster, "single").makespan
    with pytest.raises(InputError, match="roofline"):
        lm.place(graph, cluster, "single", costs="kernel")


@given(dtype=st.sampled_from(["f16", "f32"]), family=st.sampled_from([*sustained.CLASSES, "norm"]))
def test_kernels_under_load_take_a_factor_of_their_class(dtype, family):
    for (device, of_dtype), factors in sustained.factors().items():
        said = sustained.factor(device, "none", dtype, family)
        of_class = sustained.CLASSES.get(family, "")
        assert said == (factors.get(of_class, 1.0) if of_dtype == dtype else 1.0)
        # A type without factors has those of the type whose kernels it has, in one generation.
        assert sustained.factor(f"{device}-2", device, dtype, family) == said
        assert sustained.factor("V100-PCIe-32GB", device, dtype, family) == 1.0
        assert 0.25 < said < 3


def test_tf32_takes_the_kernels_of_16_bits_with_twice_the_bytes():
    plain = of("A100-SXM4-80GB")
    tensor = replace(plain, peak={**plain.peak, "f32": 156e12})
    large, tall = product(8192, 8192, 8192, "f32"), product(65536, 64, 64, "f32")
    slow = {graph: whole_seconds(graph, plain).seconds[0] for graph in (large, tall)}
    fast = {graph: whole_seconds(graph, tensor).seconds[0] for graph in (large, tall)}
    assert fast[large] == pytest.approx(2 * seconds(product(8192, 8192, 8192), plain.name), rel=0.1)
    assert fast[large] < slow[large] / 3
    # It waits for memory, which no tensor core speeds up.
    assert fast[tall] > 4 * 65536 * 128 / plain.memory_bandwidth
    conv = one_op("aten.convolution.default", "f32[32,128,56,56]", *convolved(32, 64, 128, 56))
    assert whole_seconds(conv, tensor).seconds[0] < whole_seconds(conv, plain).seconds[0]


def convolved(n, c, o, s):
    """FLOPs and bytes of a convolution of 3 x 3 in float32."""
    return 18 * n * c * o * s * s, 4 * (n * s * s * (c + o) + 9 * c * o)
