"""Forms of single calls: which factors are cut, and what the parts need and give."""

from __future__ import annotations

from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Meaning, Pattern
from loadmaster.dimensions.forming import Look, form, placeholder, ties


def look(*factors: tuple[int, int]) -> Look:
    return Look(factors, ("",) * len(factors))


def formed(pattern: Pattern, shapes, looks):
    """The form, by the names of its cuts."""
    found = form(pattern, ties(pattern, shapes), looks)
    assert len({cut.name for cut in found.cuts}) == len(found.cuts)
    return {cut.name: cut for cut in found.cuts}


def pattern(words: str, inputs, outputs, linear=(), **meanings: Meaning) -> Pattern:
    names = tuple(words.split())
    each = tuple(meanings.get(word, Meaning()) for word in names)
    return Pattern(names, each, inputs, outputs, linear)


def test_a_product_with_a_bias_is_cut_by_every_factor_and_the_bias_is_an_addend():
    addmm = pattern(
        "row column contraction", ((1,), (0, 2), (2, 1)), ((0, 1),), linear=((0, 1), (0, 2))
    )
    columns = [(3, 1), (16, 1), (64, 1)]
    bias, weight, out = (
        look(*((axis, size) for size, _ in columns))
        if axis == 0
        else look((0, 32), *((1, size) for size, _ in columns))
        for axis in (0, 1, 1)
    )
    cuts = formed(
        addmm,
        [(3072,), (32, 32), (32, 3072), (32, 3072)],
        [bias, look((0, 32), (1, 32)), weight, out],
    )
    assert list(cuts) == [
        "row", "column", "column.1", "column.2", "contraction", "partial", "partial.1",
    ]  # fmt: skip
    assert cuts["column.1"].inputs == (1, REPLICATE, 2)
    assert cuts["column.1"].outputs == (2,)
    assert cuts["column.1"].size == 16
    assert cuts["contraction"].inputs == (PARTIAL, 1, 0)
    assert cuts["contraction"].outputs == (PARTIAL,)
    assert cuts["row"].inputs == (REPLICATE, 0, REPLICATE)
    assert cuts["partial"].inputs == (PARTIAL, PARTIAL, REPLICATE)
    assert not cuts["partial"].works
    assert cuts["partial"].size == 0


def test_factors_that_not_all_tensors_have_alike_are_not_cut():
    add = pattern("axis0", ((0,), (0,)), ((0,),))
    cuts = formed(
        add,
        [(24,), (24,), (24,)],
        [look((0, 2), (0, 12)), look((0, 4), (0, 6)), look((0, 2), (0, 12))],
    )
    assert cuts == {}
    looks = [look((0, 2), (0, 3), (0, 4)), look((0, 6), (0, 4)), look((0, 6), (0, 4))]
    cuts = formed(add, [(24,), (24,), (24,)], looks)
    assert [(cut.inputs, cut.size) for cut in cuts.values()] == [((2, 1), 4)]


def test_what_is_broadcast_is_whole():
    mul = pattern("axis0 axis1", ((0, 1), (0, 1)), ((0, 1),))
    cuts = formed(
        mul, [(8, 4), (1, 4), (8, 4)], [look((0, 8), (1, 4)), look((1, 4)), look((0, 8), (1, 4))]
    )
    assert cuts["axis0"].inputs == (0, REPLICATE)
    assert cuts["axis1"].inputs == (1, 0)


def test_heads_of_keys_have_the_same_shares_as_heads_of_queries():
    attention = pattern("head", ((0,), (0,)), ((0,),))
    looks = [look((0, 8), (0, 4)), look((0, 8)), look((0, 8), (0, 4))]
    [cut] = formed(attention, [(32,), (8,), (32,)], looks).values()
    assert (cut.size, cut.inputs, cut.outputs) == (8, (0, 0), (0,))


def test_groups_are_not_cut_within():
    norm = pattern("channel", ((0,),), ((0,),), channel=Meaning(least=10))
    [cut] = formed(norm, [(320,), (320,)], [look((0, 32), (0, 10))] * 2).values()
    assert (cut.size, cut.inputs) == (32, (0,))
    assert formed(norm, [(320,), (320,)], [look((0, 320))] * 2) == {}


def test_within_a_period_only_what_is_in_it_is_cut():
    split = pattern("axis0", ((0,),), ((0,), (0,)), axis0=Meaning(period=64))
    looks = [look((0, 2), (0, 4), (0, 16)), look((0, 4), (0, 16)), look((0, 4), (0, 16))]
    cuts = formed(split, [(128,), (64,), (64,)], looks)
    assert [(cut.inputs, cut.outputs) for cut in cuts.values()] == [((1,), (0, 0)), ((2,), (1, 1))]


def test_what_reaches_beyond_a_period_is_not_cut():
    tiled = pattern("axis0", ((0,),), ((0,),), axis0=Meaning(period=64))
    [cut] = formed(tiled, [(128,), (128,)], [look((0, 16), (0, 8))] * 2).values()
    assert (cut.size, cut.inputs, cut.outputs) == (8, (1,), (1,))


def test_where_a_window_moves_only_whole_axes_are_cut():
    halo = Meaning(halos=((1, 1), (0, 0)), steps=(2, 1, 1))
    convolution = pattern("spatial0", ((0,), (-1,)), ((0,),), spatial0=halo)
    shapes = [(224,), (3,), (112,)]
    [cut] = formed(convolution, shapes, [look((0, 224)), look((0, 3)), look((0, 112))]).values()
    assert (cut.size, cut.inputs, cut.outputs) == (112, (0, REPLICATE), (0,))
    assert (cut.halos, cut.steps) == (halo.halos, halo.steps)
    looks = [look((0, 14), (0, 16)), look((0, 3)), look((0, 112))]
    assert formed(convolution, shapes, looks) == {}


def test_what_parts_exchange_leaves_the_rest_whole():
    norm = pattern("row feature", ((0, 1), (1,)), ((0, 1), (0,)), feature=Meaning(exchanged=64))
    looks = [look((0, 4), (1, 8)), look((0, 8)), look((0, 4), (1, 8)), look((0, 4))]
    cuts = formed(norm, [(4, 8), (8,), (4, 8), (4,)], looks)
    assert cuts["feature"].outputs == (1, REPLICATE)
    assert cuts["feature"].exchanged == 64
    assert cuts["row"].outputs == (0, 0)


def test_whose_values_do_not_matter_is_any():
    zeros = pattern("axis0", (None,), ((0,),))
    cuts = formed(zeros, [(8,), (8,)], [look((0, 8))] * 2)
    assert cuts["axis0"].inputs == (ANY,)


def test_a_copy_in_another_shape_is_cut_by_what_both_shapes_have():
    copy = Pattern((), (), ((-1, -1),), ((-1, -1, -1),), is_reshape=True)
    looks = [look((0, 6), (1, 2), (1, 5)), look((0, 3), (0, 2), (1, 2), (2, 5))]
    cuts = formed(copy, [(6, 10), (6, 2, 5)], looks)
    assert {name: (cut.inputs, cut.outputs) for name, cut in cuts.items()} == {
        "axis1": ((1,), (2,)),
        "axis2": ((2,), (3,)),
    }


def test_a_placeholder_is_cut_by_its_factors():
    found = placeholder(Look(((0, 3), (0, 16), (1, 8)), ("", "head", "feature")))
    assert [(cut.name, cut.role, cut.size, cut.outputs) for cut in found.cuts] == [
        ("axis0", "", 3, (0,)),
        ("axis0.1", "head", 16, (1,)),
        ("axis1", "feature", 8, (2,)),
    ]
