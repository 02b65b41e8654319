"""Every rule for ATen: the parts of a call, executed by PyTorch and joined, are the whole call.

Needs torch (no GPU): without it these tests are skipped. Kernels that need a GPU are replaced by
their formula.
"""

from __future__ import annotations

import pytest
from drawn import Drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from parted import check

pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

import torch_elements
import torch_products
import torch_rows

from loadmaster.dimensions.rules import rules

KINDS = {kind: rule for kind, rule in rules().items() if kind.startswith("aten.")}

FAMILIES = {
    "along": torch_rows.along,
    "batch-norm": torch_rows.batch_norm,
    "convolution": torch_products.convolution,
    "convolution-backward": torch_products.convolution_backward,
    "einsum": torch_products.einsum,
    "element": torch_elements.element,
    "elementwise": torch_elements.elementwise,
    "group-norm": torch_rows.group_norm,
    "index": torch_rows.index,
    "index-add": torch_rows.index_add,
    "index-select": torch_rows.index_select,
    "joined": torch_elements.joined,
    "layer-norm": torch_rows.layer_norm,
    "likelihood": torch_rows.likelihood,
    "likelihood-backward": torch_rows.likelihood_backward,
    "loss": torch_rows.loss,
    "made": torch_elements.made,
    "padded": torch_elements.padded,
    "permute": torch_elements.permute,
    "piece": torch_elements.piece,
    "pool": torch_products.pool,
    "product": torch_products.product,
    "put-back": torch_elements.put_back,
    "recurrent": torch_rows.recurrent,
    "recurrent_layer": torch_rows.recurrent_layer,
    "reduction": torch_rows.reduction,
    "repeat": torch_elements.repeat,
    "reshape": torch_elements.reshape,
    "resize": torch_products.resize,
    "same": torch_elements.same,
    "stacked": torch_elements.stacked,
    "strided": torch_elements.strided,
}
#: Families whose kinds differ only in what is done to an element, and need fewer examples each.
SIMPLE = ("elementwise", "made")


@pytest.mark.parametrize("kind", sorted(k for k, rule in KINDS.items() if rule.family in SIMPLE))
@settings(max_examples=5)
@given(st.data())
def test_ops_on_elements(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[KINDS[kind].family](drawn, kind), drawn.int(2, 3))


@pytest.mark.parametrize(
    "kind", sorted(k for k, rule in KINDS.items() if rule.family not in SIMPLE)
)
@settings(max_examples=12)
@given(st.data())
def test_parts_joined_are_the_whole(kind, data):
    drawn = Drawn(data)
    check(FAMILIES[KINDS[kind].family](drawn, kind), drawn.int(2, 4))
