//! From a model's graph to the one that is placed: what disappears, and what must not be lost.

use std::collections::BTreeSet;

use crate::common::{self, Model, mesh, micros, models, on, reachable, run};
use loadmaster_core::Error;
use loadmaster_core::ids::{OpId, TensorId};
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use loadmaster_core::reduce::{Reduced, reduce};
use loadmaster_core::simulate::Options;
use loadmaster_core::workload::{Lifetime, Workload};
use proptest::prelude::*;

/// A model written down op by op.
#[derive(Clone, Debug, Default)]
struct Build(OpColumns);

impl Build {
    fn row(&mut self, name: &str) -> usize {
        let c = &mut self.0;
        c.name.push(name.into());
        c.view.push(false);
        c.placeholder.push(false);
        c.alias_of.push(-1);
        c.near.push(-1);
        c.colocation.push(-1);
        c.flops.push(0);
        c.accessed.push(0);
        c.output_bytes.push(0);
        c.resident.push(0);
        c.workspace.push(0);
        c.tensor.get_or_insert_default();
        c.name.len() - 1
    }

    fn op(&mut self, name: &str, output_bytes: u64) -> usize {
        let u = self.row(name);
        self.0.output_bytes[u] = output_bytes;
        u
    }

    fn view(&mut self, name: &str, owner: usize) -> usize {
        let u = self.row(name);
        self.0.view[u] = true;
        self.0.alias_of[u] = owner as i64;
        u
    }

    fn in_place(&mut self, name: &str, owner: usize) -> usize {
        let u = self.row(name);
        self.0.alias_of[u] = owner as i64;
        u
    }

    fn placeholder(&mut self, name: &str, bytes: u64) -> usize {
        let u = self.row(name);
        self.0.placeholder[u] = true;
        self.0.resident[u] = bytes;
        u
    }

    fn edge(&mut self, src: usize, dst: usize, tensor: i64, bytes: u64) {
        self.0.src.push(src as i64);
        self.0.dst.push(dst as i64);
        self.0.tensor.get_or_insert_default().push(tensor);
        self.0.bytes.push(bytes);
    }

    fn control(&mut self, src: usize, dst: usize) {
        self.edge(src, dst, -1, 0);
    }

    fn graph(&self) -> OpGraph {
        OpGraph::new(self.0.clone()).expect("a valid model")
    }

    fn reduce(&self) -> Seen {
        let reduced = reduce(&self.graph(), &[]).expect("a reducible model");
        Seen { names: self.0.name.clone(), reduced }
    }

    fn error(&self) -> String {
        let built = OpGraph::new(self.0.clone()).and_then(|g| reduce(&g, &[]).map(|_| ()));
        built.expect_err("a bad model").to_string()
    }
}

/// A reduced graph with names.
struct Seen {
    names: Vec<String>,
    reduced: Reduced,
}

/// Source, reader, tensor id (-1: control) and bytes.
type Named<'a> = (&'a str, &'a str, i64, u64);

impl Seen {
    fn name(&self, op: OpId) -> &str {
        &self.names[self.reduced.op_of[op.ix()].ix()]
    }

    fn op(&self, name: &str) -> OpId {
        let found = self.reduced.work.graph.ops().find(|&u| self.name(u) == name);
        found.expect("an op of the reduced graph")
    }

    fn ops(&self) -> Vec<&str> {
        self.reduced.work.graph.ops().map(|u| self.name(u)).collect()
    }

    fn row(&self, t: TensorId, reader: OpId) -> Named<'_> {
        let work = &self.reduced.work;
        let id = if work.graph.is_control(t) { -1 } else { i64::from(work.graph.key(t)) };
        (self.name(work.graph.source(t)), self.name(reader), id, work.tensor_bytes[t.ix()])
    }

    fn rows(&self, home: bool) -> Vec<Named<'_>> {
        let g = &self.reduced.work.graph;
        let tensors = g.tensors().filter(|&t| g.is_home(t) == home);
        tensors.flat_map(|t| g.consumers(t).iter().map(move |&c| self.row(t, c))).collect()
    }

    /// Dependencies.
    fn edges(&self) -> Vec<Named<'_>> {
        self.rows(false)
    }

    /// Reads of what is there at time 0.
    fn homes(&self) -> Vec<Named<'_>> {
        self.rows(true)
    }

    /// Where an op of the model sits.
    fn at(&self, name: &str) -> &str {
        let u = self.names.iter().position(|n| n == name).expect("an op of the model");
        self.name(self.reduced.map[u])
    }

    /// Bytes and lifetime of what an op allocates.
    fn storages(&self, name: &str) -> Vec<(u64, Lifetime)> {
        self.reduced.work.storages_of(self.op(name)).iter().map(|s| (s.bytes, s.lifetime)).collect()
    }

    fn together(&self, a: &str, b: &str) -> bool {
        let set_of = &self.reduced.work.set_of;
        set_of[self.op(a).ix()] == set_of[self.op(b).ix()]
    }
}

use Lifetime::{UntilEnd, UntilUsed};

#[test]
fn a_chain_of_views_disappears_and_a_slice_pulls_its_own_bytes() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let reshape = b.view("reshape", a);
    let slice = b.view("slice", a);
    let c = b.op("c", 1);
    b.edge(a, reshape, 0, 8);
    b.edge(reshape, slice, 1, 8);
    b.edge(slice, c, 2, 3);
    let s = b.reduce();
    assert_eq!(s.ops(), ["a", "c"]);
    assert_eq!(s.edges(), [("a", "c", 2, 3)]);
    assert_eq!((s.at("reshape"), s.at("slice")), ("a", "a"));
    // The slice keeps all of a's 8 bytes alive.
    assert_eq!(s.storages("a"), [(8, UntilUsed)]);
    assert_eq!(s.reduced.work.tensor_storage[0].0, 0);
}

#[test]
fn a_view_of_the_same_size_is_the_same_tensor_and_is_sent_once() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let view = b.view("view", a);
    let x = b.op("x", 0);
    let y = b.op("y", 0);
    b.edge(a, x, 0, 8);
    b.edge(a, view, 0, 8);
    b.edge(view, y, 1, 8);
    let s = b.reduce();
    assert_eq!(s.edges(), [("a", "x", 0, 8), ("a", "y", 0, 8)]);
    let r =
        run(&s.reduced.work, &mesh(2, 0.0), &micros(&[1; 3]), &on(&[0, 1, 1]), &[0; 3], Options::default());
    assert_eq!((r.transfers.len(), r.bytes_moved), (1, 8));

    // A slice goes beside the whole.
    b.0.bytes[2] = 7;
    let s = b.reduce();
    let r =
        run(&s.reduced.work, &mesh(2, 0.0), &micros(&[1; 3]), &on(&[0, 1, 1]), &[0; 3], Options::default());
    assert_eq!((r.transfers.len(), r.bytes_moved), (2, 15));
}

#[test]
fn a_view_of_what_was_changed_in_place_waits_for_the_change() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let add = b.in_place("add_", a);
    let view = b.view("view", a);
    let c = b.op("c", 0);
    b.edge(a, add, 0, 8);
    b.edge(add, view, 1, 8);
    b.edge(view, c, 2, 8);
    let s = b.reduce();
    assert_eq!(s.edges(), [("a", "add_", 0, 8), ("add_", "c", 1, 8)]);
    assert_eq!(s.at("view"), "add_");
    assert!(s.together("a", "add_") && !s.together("a", "c"));
    // One storage, a's, which c keeps alive through the changed tensor.
    assert_eq!(s.storages("a"), [(8, UntilUsed)]);
    assert_eq!(s.storages("add_"), []);
    let storage = &s.reduced.work.tensor_storage;
    assert_eq!((storage[0].0, storage[1].0), (0, 0));
}

#[test]
fn control_edges_pass_through_views() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let before = b.op("before", 0);
    let view = b.view("view", a);
    let c = b.op("c", 0);
    let after = b.op("after", 0);
    b.edge(a, view, 0, 8);
    b.control(before, view);
    b.edge(view, c, 1, 8);
    b.control(view, after);
    let s = b.reduce();
    let edges: BTreeSet<_> = s.edges().into_iter().collect();
    let expected =
        [("a", "c", 0, 8), ("before", "c", -1, 0), ("a", "after", -1, 0), ("before", "after", -1, 0)];
    assert_eq!(edges, expected.into());
}

#[test]
fn placeholders_are_there_at_home_and_no_dependency() {
    let mut b = Build::default();
    let weight = b.placeholder("weight", 100);
    let bias = b.placeholder("bias", 10);
    let transposed = b.view("transposed", weight);
    let unread = b.placeholder("unread", 1000);
    b.0.output_bytes[unread] = 1001; // What it holds, said twice: the larger counts.
    let late = b.op("late", 0);
    let first = b.op("first", 4);
    b.edge(weight, transposed, 0, 60);
    b.edge(transposed, late, 1, 60);
    b.edge(weight, first, 0, 60);
    b.edge(bias, late, 2, 10);
    b.edge(first, late, 3, 4);
    let s = b.reduce();
    assert_eq!(s.ops(), ["first", "late"], "as they run");
    assert_eq!(s.edges(), [("first", "late", 3, 4)]);
    // The weight lives with its topologically first reader, the bias with its only one.
    let homes: BTreeSet<_> = s.homes().into_iter().collect();
    assert_eq!(homes, [("first", "first", 0, 60), ("first", "late", 0, 60), ("late", "late", 2, 10)].into());
    assert_eq!((s.at("weight"), s.at("transposed"), s.at("bias")), ("first", "first", "late"));
    // Resident bytes go along; what nobody reads sits with the first op.
    assert_eq!(s.at("unread"), "first");
    assert_eq!(s.reduced.work.resident, [1101, 10]);

    // Elsewhere it is pulled from time 0 on, 60 bytes at 1 byte/us; then come the 4 bytes of `first`.
    let times = micros(&[1, 1]);
    let (work, cluster) = (&s.reduced.work, mesh(2, 0.0));
    let r = run(work, &cluster, &times, &on(&[0, 1]), &[0, 0], Options::default());
    let us = common::tick(work, &cluster, &times);
    assert_eq!((r.start[1] / us, r.makespan / us), (64, 65));
}

#[test]
fn a_parameter_is_at_home_with_its_update_which_follows_the_first_reader() {
    let mut b = Build::default();
    let p = b.placeholder("p", 100);
    let slot = b.placeholder("slot", 200);
    let forward = b.op("forward", 4);
    let gradient = b.op("gradient", 100);
    let update = b.in_place("update_", p);
    for u in [p, slot, update] {
        b.0.colocation[u] = 5;
    }
    b.edge(p, forward, 0, 100);
    b.edge(forward, gradient, 1, 4);
    b.edge(gradient, update, 2, 100);
    b.edge(p, update, 0, 100);
    b.edge(slot, update, 3, 200);
    let s = b.reduce();
    assert_eq!(s.ops(), ["forward", "gradient", "update_"]);
    let homes: BTreeSet<_> = s.homes().into_iter().collect();
    let expected =
        [("update_", "forward", 0, 100), ("update_", "update_", 0, 100), ("update_", "update_", 3, 200)];
    assert_eq!(homes, expected.into());
    assert_eq!((s.at("p"), s.at("slot")), ("update_", "update_"));
    assert_eq!(s.reduced.work.resident, [0, 0, 300]);
    let lead = |name| s.name(s.reduced.work.lead[s.op(name).ix()]);
    assert_eq!((lead("forward"), lead("gradient"), lead("update_")), ("forward", "gradient", "forward"));
    assert!(!s.together("forward", "update_"), "advice, not a rule");
    // The update changes resident memory: it allocates nothing.
    assert_eq!(s.storages("update_"), []);
}

#[test]
fn a_getitem_forwards_the_tensor_of_its_producer() {
    let mut b = Build::default();
    let split = b.op("split", 10);
    let first = b.view("getitem 0", split);
    let second = b.view("getitem 1", split);
    let [x, y, z] = ["x", "y", "z"].map(|name| b.op(name, 0));
    b.edge(split, first, 0, 4);
    b.edge(split, second, 1, 6);
    b.edge(first, x, 0, 4);
    b.edge(second, y, 1, 6);
    b.edge(second, z, 1, 6);
    let s = b.reduce();
    assert_eq!(s.edges(), [("split", "x", 0, 4), ("split", "y", 1, 6), ("split", "z", 1, 6)]);
    assert_eq!(s.storages("split"), [(4, UntilUsed), (6, UntilUsed)]);
    assert_eq!(s.reduced.work.graph.n_tensors(), 2);
}

#[test]
fn a_view_of_two_tensors_forwards_each_from_its_own_producer() {
    // A tuple of b and a, taken apart again: x reads what came from a, y what came from b.
    let mut m = Build::default();
    let a = m.op("a", 4);
    let b = m.op("b", 9);
    let tuple = m.view("tuple", a);
    let [x, y] = ["x", "y"].map(|name| m.op(name, 0));
    m.edge(a, tuple, 0, 4);
    m.edge(b, tuple, 1, 9);
    m.edge(tuple, x, 0, 4);
    m.edge(tuple, y, 1, 9);
    let s = m.reduce();
    let data: BTreeSet<_> = s.edges().into_iter().filter(|e| e.2 >= 0).collect();
    assert_eq!(data, [("a", "x", 0, 4), ("b", "y", 1, 9)].into());
}

#[test]
fn what_nobody_reads_of_a_read_op_is_freed_and_outputs_are_kept() {
    let mut b = Build::default();
    let norm = b.op("norm", 10); // 7 bytes read, 3 (saved statistics) read by nobody.
    let out = b.op("out", 5);
    let changed = b.in_place("changed_", out);
    let last = b.op("last", 6);
    let shown = b.view("shown", last);
    b.op("alone", 2);
    b.edge(norm, out, 0, 7);
    b.edge(out, changed, 1, 5);
    b.edge(norm, last, 0, 7);
    b.edge(last, shown, 2, 6);
    let s = b.reduce();
    assert_eq!(s.storages("norm"), [(7, UntilUsed), (3, UntilUsed)]);
    assert_eq!(s.storages("out"), [(5, UntilEnd)]); // Changed in place by an op that nobody reads.
    assert_eq!(s.storages("last"), [(6, UntilEnd)]);
    assert_eq!(s.storages("alone"), [(2, UntilEnd)]);
    let (work, options) = (&s.reduced.work, Options { record_memory: true, ..Options::default() });
    let r = run(work, &mesh(1, 0.0), &micros(&[1; 5]), &on(&[0; 5]), &[0, 1, 2, 3, 4], options);
    let bytes: Vec<u64> = r.memory.iter().map(|m| m.bytes).collect();
    // norm 10; its 3 go; out 5 more; last 6 more, then norm's 7 go; alone 2.
    assert_eq!(bytes, [0, 10, 7, 12, 18, 11, 13]);
}

#[test]
fn in_place_ops_follow_their_owner_and_one_decides() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let first = b.in_place("first_", a);
    let second = b.in_place("second_", a);
    b.edge(a, first, 0, 8);
    b.edge(first, second, 1, 8);
    let s = b.reduce();
    assert!(s.together("a", "first_") && s.together("a", "second_"));
    assert!(s.reduced.work.lead.iter().all(|&l| s.name(l) == "a"));
    assert_eq!(s.storages("a"), [(8, UntilEnd)]);
}

#[test]
fn what_is_colocated_with_a_view_sits_with_its_data() {
    let mut b = Build::default();
    let a = b.op("a", 8);
    let view = b.view("view", a);
    let c = b.op("c", 0);
    b.op("d", 0);
    b.edge(a, view, 0, 8);
    b.edge(view, c, 1, 8);
    b.0.colocation[view] = 1;
    b.0.colocation[c] = 1;
    let s = b.reduce();
    assert!(s.together("a", "c") && !s.together("a", "d"));
}

#[test]
fn control_edges_that_views_would_multiply_are_refused() {
    // 400 ops before a view and 400 after it: 160,000 edges from 802.
    let mut b = Build::default();
    let a = b.op("a", 1);
    let view = b.view("view", a);
    b.edge(a, view, 0, 1);
    for i in 0..400 {
        let before = b.op(&format!("before {i}"), 0);
        let after = b.op(&format!("after {i}"), 0);
        b.control(before, view);
        b.control(view, after);
    }
    let message = b.error();
    assert!(message.contains("\"view\""), "{message}");
}

#[test]
fn control_edges_along_a_chain_of_views_are_not_multiplied() {
    // 100 ops must come before the first of 100 views; one op reads the last: 101 edges.
    let mut b = Build::default();
    let mut shown = b.op("a", 1);
    let waits: Vec<usize> = (0..100).map(|i| b.op(&format!("before {i}"), 0)).collect();
    for i in 0..100 {
        let view = b.view(&format!("view {i}"), 0);
        b.edge(shown, view, i, 1);
        if i == 0 {
            waits.iter().for_each(|&w| b.control(w, view));
        }
        shown = view;
    }
    let reader = b.op("reader", 0);
    b.edge(shown, reader, 100, 1);
    assert_eq!(b.reduce().edges().len(), 101);
}

#[test]
fn errors_call_ops_by_name() {
    let two = |f: &dyn Fn(&mut Build)| {
        let mut b = Build::default();
        let (x, y) = (b.op("x", 1), b.op("y", 1));
        b.edge(x, y, 0, 1);
        f(&mut b);
        b.error()
    };
    assert!(two(&|b| b.edge(1, 0, 1, 1)).contains("\"x\" -> \"y\""));
    assert!(two(&|b| b.0.name[1] = "x".into()).contains("two ops are named \"x\""));
    assert!(two(&|b| b.edge(0, 1, 0, 2)).contains("tensor 0 of \"x\" has 1 byte on one edge and 2"));
    assert!(two(&|b| b.0.alias_of[1] = 7).contains("\"y\" has alias_of 7"));
    assert!(two(&|b| b.0.alias_of[1] = 1).contains("\"y\" has alias_of 1"));
    assert!(two(&|b| b.0.alias_of = vec![1, 0]).contains("\"x\" has alias_of 1"));
    assert!(two(&|b| b.edge(0, 0, 0, 1)).contains("joins \"x\" to itself"));
    assert!(
        two(&|b| {
            b.0.workspace.pop();
        })
        .contains("workspace has 1 value where 2")
    );
    assert!(
        two(&|b| {
            b.0.bytes.pop();
        })
        .contains("bytes has 0 values where 1")
    );
    let shared = two(&|b| {
        let z = b.op("z", 1);
        b.edge(z, 1, 0, 1);
    });
    assert!(shared.contains("two producers, \"x\" and \"z\""), "{shared}");
}

#[test]
fn a_graph_of_placeholders_and_views_alone_has_no_ops() {
    let mut b = Build::default();
    let p = b.placeholder("p", 1);
    let v = b.view("v", p);
    b.edge(p, v, 0, 1);
    assert!(b.error().contains("no ops"));
}

#[test]
fn what_nobody_reads_is_placed_with_the_op_near_it() {
    let mut b = Build::default();
    let (a, c) = (b.op("a", 1), b.op("c", 1));
    b.edge(a, c, 0, 1);
    let unread = b.placeholder("unread", 5);
    assert_eq!(b.reduce().reduced.map[unread], OpId(0));
    b.0.near[unread] = c as i64;
    let reduced = b.reduce().reduced;
    assert_eq!(reduced.op_of[reduced.map[unread].ix()], OpId::new(c));
    assert_eq!(reduced.work.resident, [0, 5]);
    for bad in [unread as i64, 7] {
        b.0.near[unread] = bad;
        assert!(OpGraph::new(b.0.clone()).unwrap_err().to_string().contains("near"));
    }
}

#[test]
fn device_types_of_a_placeholder_bind_the_op_that_it_is_placed_with() {
    let mut b = Build::default();
    let (w, a) = (b.placeholder("w", 5), b.op("a", 1));
    b.edge(w, a, 0, 5);
    assert_eq!(reduce(&b.graph(), &[2, 3]).unwrap().work.allowed, [2]);
    let error = reduce(&b.graph(), &[2, 1]).expect_err("no type for both");
    assert!(error.to_string().contains("\"w\" and \"a\" must share a device"));
}

#[test]
fn ops_that_share_storage_need_a_common_device_type() {
    let mut b = Build::default();
    let a = b.op("a", 1);
    let add = b.in_place("add_", a);
    b.edge(a, add, 0, 1);
    let error = reduce(&b.graph(), &[1, 2]).expect_err("no type for both");
    assert!(error.to_string().contains("\"a\" and \"add_\" must share a device"));
    assert_eq!(reduce(&b.graph(), &[3, 2]).unwrap().work.allowed, [2, 2]);
    assert!(reduce(&b.graph(), &[3]).is_err());
}

/// Real ops that `op` waits for, through views, and placeholders it reads through them.
fn waits(c: &OpColumns, op: usize, found: &mut BTreeSet<usize>) {
    for i in (0..c.src.len()).filter(|&i| c.dst[i] == op as i64) {
        let s = c.src[i] as usize;
        if c.view[s] {
            waits(c, s, found);
        } else {
            found.insert(s);
        }
    }
}

/// The op or placeholder whose data a view shows.
fn shown_by(c: &OpColumns, view: usize) -> usize {
    let tensor = c.tensor.as_ref().expect("given");
    let data = (0..c.src.len()).filter(|&i| c.dst[i] == view as i64 && tensor[i] >= 0);
    let first = data.min_by_key(|&i| (c.src[i], tensor[i])).expect("a view shows something");
    let s = c.src[first] as usize;
    if c.view[s] { shown_by(c, s) } else { s }
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn nothing_real_is_lost_and_every_wait_is_kept(model in models(16)) {
        let c = model.graph.columns();
        let n = c.name.len();
        let Reduced { work, map, op_of, .. } = model.reduce();
        let g = &work.graph;
        let real: Vec<usize> = (0..n).filter(|&u| !c.view[u] && !c.placeholder[u]).collect();
        let by_index: Vec<usize> = g.numbering().by_index(op_of.clone()).iter().map(|u| u.ix()).collect();
        prop_assert_eq!(&by_index, &real);
        let index = |u: usize| OpId::new(op_of.iter().position(|r| r.ix() == u).expect("a real op"));

        // Every op sits somewhere: real ops with themselves, views with what they show.
        for u in 0..n {
            if c.view[u] {
                prop_assert_eq!(map[u], map[shown_by(c, u)]);
            } else if !c.placeholder[u] {
                prop_assert_eq!(map[u], index(u));
            }
        }

        // What an op waited for, it still waits for; nothing else.
        let below = reachable(g);
        for &v in &real {
            let mut before = BTreeSet::new();
            waits(c, v, &mut before);
            let expected: BTreeSet<OpId> =
                before.iter().filter(|&&u| !c.placeholder[u]).map(|&u| index(u)).collect();
            let got: BTreeSet<OpId> = g.inputs_with_ops(index(v)).map(|(_, p)| p).collect();
            prop_assert_eq!(&got, &expected);
            prop_assert!(expected.iter().all(|u| below[u.ix()][index(v).ix()]));
        }

        // Data of placeholders is pulled from where they sit.
        let tensor = c.tensor.as_ref().expect("given");
        for i in (0..c.src.len()).filter(|&i| tensor[i] >= 0 && real.contains(&(c.dst[i] as usize))) {
            let s = c.src[i] as usize;
            let base = if c.view[s] { shown_by(c, s) } else { s };
            let v = index(c.dst[i] as usize);
            if c.placeholder[base] {
                let mut pulled = g.pulls(v).iter().filter(|&&t| g.source(t) == map[base]);
                prop_assert!(pulled.any(|t| work.tensor_bytes[t.ix()] >= c.bytes[i].min(1)));
            }
        }

        // Bytes.
        let held = |u: usize| if c.placeholder[u] { c.resident[u].max(c.output_bytes[u]) } else { c.resident[u] };
        prop_assert_eq!(work.resident.iter().sum::<u64>(), (0..n).map(held).sum::<u64>());
        for &u in real.iter().filter(|&&u| c.alias_of[u] < 0) {
            let mut sent: Vec<(i64, u64)> = (0..c.src.len())
                .filter(|&i| c.src[i] == u as i64 && tensor[i] >= 0)
                .map(|i| (tensor[i], c.bytes[i]))
                .collect();
            sent.sort_unstable();
            sent.dedup();
            let bytes = sent.iter().map(|s| s.1).sum::<u64>().max(c.output_bytes[u]);
            prop_assert_eq!(work.output_bytes(index(u)), bytes);
        }

        // An in-place op is bound to the owner's device, colocated ops to one.
        for &u in &real {
            if c.alias_of[u] >= 0 {
                let owner = map[c.alias_of[u] as usize];
                prop_assert_eq!(work.set_of[owner.ix()], work.set_of[index(u).ix()]);
            }
            for &v in real.iter().filter(|&&v| c.colocation[v] >= 0 && c.colocation[v] == c.colocation[u]) {
                prop_assert_eq!(work.set_of[index(u).ix()], work.set_of[index(v).ix()]);
            }
        }
    }

    #[test]
    fn one_op_decides_for_each_and_may_use_what_they_may(model in models(16)) {
        let work = model.reduce().work;
        for u in work.graph.ops() {
            let lead = work.lead[u.ix()];
            prop_assert_eq!(work.lead[lead.ix()], lead, "a chain of leads");
            prop_assert_eq!(work.allowed[lead.ix()], work.allowed[u.ix()]);
            let mate = work.sets.row(work.set_of[u.ix()] as usize)[0];
            prop_assert_eq!(work.lead[mate.ix()], lead, "a set with two leads");
        }
    }

    #[test]
    fn reducing_what_is_reduced_changes_nothing(model in models(12)) {
        // The real ops of a model without views and placeholders, as a model of their own.
        let first = model.reduce();
        let g = &first.work.graph;
        let n = first.work.n_ops();
        let mut c = OpColumns {
            name: (0..n).map(|u| u.to_string()).collect(),
            view: vec![false; n],
            placeholder: vec![false; n],
            alias_of: vec![-1; n],
            near: vec![-1; n],
            colocation: first.work.set_of.iter().map(|&s| i64::from(s)).collect(),
            flops: vec![0; n],
            accessed: vec![0; n],
            output_bytes: vec![0; n],
            resident: first.work.resident.clone(),
            workspace: first.work.workspace.clone(),
            tensor: Some(Vec::new()),
            ..OpColumns::default()
        };
        // Number tensors anew: slices keep the ids of their views, which may exceed the count here.
        for v in g.ops() {
            for (t, u) in g.inputs_with_ops(v) {
                c.src.push(i64::from(u.0));
                c.dst.push(i64::from(v.0));
                c.tensor.get_or_insert_default().push(if g.is_control(t) { -1 } else { i64::from(t.0) });
                c.bytes.push(first.work.tensor_bytes[t.ix()]);
            }
        }
        let graph = OpGraph::new(c).expect("valid");
        let again = Model { graph, allowed: first.work.allowed.clone() }.reduce();
        prop_assert_eq!(again.work.graph.n_edges(), g.n_edges());
        for v in g.ops() {
            let sources = |w: &Reduced| w.work.graph.inputs_with_ops(v).map(|(_, u)| u).collect::<Vec<_>>();
            prop_assert_eq!(sources(&again), sources(&first));
        }
        let together = |w: &Workload| -> Vec<bool> {
            let pairs = w.graph.ops().flat_map(|u| w.graph.ops().map(move |v| (u, v)));
            pairs.map(|(u, v)| w.set_of[u.ix()] == w.set_of[v.ix()]).collect()
        };
        prop_assert_eq!(together(&again.work), together(&first.work));
        prop_assert_eq!(again.work.resident, first.work.resident);
    }
}

#[test]
fn an_error_of_validation_is_the_enum_and_not_a_text() {
    let mut b = Build::default();
    b.op("only", 1);
    b.control(0, 0);
    assert!(matches!(OpGraph::new(b.0), Err(Error::SelfLoop { .. })));
}
