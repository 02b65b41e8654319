//! Which ops data parallelism replicates, and which of their tensors are weight gradients.
//!
//! An op is replicated if it depends on the batch: on an input, or on nothing at all. Parameters,
//! buffers, constants, what writes them in place, and the optimizer are not. A member of a collective
//! depends on what any member reads. A weight gradient is what
//! an op that is not replicated reads of one that is; and, backwards through ops without FLOPs,
//! tensors as large that are read for nothing else. A member of a collective may hand on a part of what
//! it reads. O(V + E).

use crate::csr::Csr;
use crate::opgraph::OpGraph;

/// What a user's kinds and phases say of each op.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Parameters, buffers and constants.
    pub state: &'a [bool],
    /// Inputs of the model.
    pub input: &'a [bool],
    /// The optimizer's ops.
    pub update: &'a [bool],
}

/// Per op, whether it is replicated; per edge, whether it carries a weight gradient, or a part of one,
/// of a replicated op.
pub fn roles(model: &OpGraph, facts: Facts<'_>) -> (Vec<bool>, Vec<bool>) {
    let many = replicated(model, facts);
    let gradient = Gradients::new(model, &many).per_edge();
    (many, gradient)
}

/// The model's tensor ids per edge, -1 for control edges.
fn ids(model: &OpGraph) -> &[i64] {
    let columns = model.columns();
    columns.tensor.as_deref().unwrap_or(&columns.src)
}

/// Edges with data, with their source and destination.
fn data(model: &OpGraph) -> impl Iterator<Item = (usize, usize, usize)> + Clone {
    let columns = model.columns();
    let ends = columns.src.iter().zip(&columns.dst).zip(ids(model)).enumerate();
    ends.filter(|(_, (_, id))| **id >= 0).map(|(e, ((&s, &d), _))| (e, s as usize, d as usize))
}

fn replicated(model: &OpGraph, facts: Facts<'_>) -> Vec<bool> {
    let (n, columns) = (model.n_ops(), model.columns());
    let owner = |u: usize| usize::try_from(columns.alias_of[u]).ok();
    let is_once = |u: usize| {
        let writes_state = owner(u).is_some_and(|of| facts.state[of]);
        facts.state[u] || (!columns.view[u] && (facts.update[u] || writes_state))
    };
    let once: Vec<bool> = (0..n).map(is_once).collect();
    let readers = Csr::from_pairs(n, data(model).map(|(_, s, d)| (s, d as u32)));
    // An op that writes a tensor in place is where the tensor is: either both are replicated or
    // neither, and the same goes for views.
    let bound = (0..n).filter(|&u| !once[u]).filter_map(|u| Some((owner(u)?, u as u32)));
    let bound = Csr::from_pairs(n, bound);
    let group = |u: usize| columns.collective.get(u).and_then(|&of| usize::try_from(of).ok());
    let n_groups = (0..n).filter_map(group).max().map_or(0, |last| last + 1);
    let members = Csr::from_pairs(n_groups, (0..n).filter_map(|u| Some((group(u)?, u as u32))));
    let mut is_source = vec![true; n];
    if facts.input.contains(&true) {
        data(model).for_each(|(_, _, d)| is_source[d] = false);
        for of in 0..n_groups {
            let reads = members.row(of).iter().any(|&u| !is_source[u as usize]);
            members.row(of).iter().for_each(|&u| is_source[u as usize] &= !reads);
        }
    }
    let mut many = vec![false; n];
    let mut stack: Vec<u32> = (0..n).filter(|&u| is_source[u]).map(|u| u as u32).collect();
    while let Some(u) = stack.pop().map(|u| u as usize) {
        let shows_one = columns.view[u] && owner(u).is_some_and(|of| once[of]);
        if many[u] || once[u] || shows_one {
            continue;
        }
        many[u] = true;
        stack.extend(readers.row(u));
        stack.extend(bound.row(u));
        stack.extend(owner(u).map(|of| of as u32));
        stack.extend(group(u).into_iter().flat_map(|of| members.row(of)));
    }
    many
}

/// Per edge, whether it carries what must be summed over replicas, from the model to the optimizer.
///
/// State that is written for itself, such as the running statistics of a batch norm, is not summed:
/// every replica writes its own. `many` says which ops are replicated, `parameter` which ops are
/// parameters, `update` which ops are the optimizer's. O(V + E).
pub fn summed(model: &OpGraph, many: &[bool], parameter: &[bool], update: &[bool]) -> Vec<bool> {
    let (n, columns) = (model.n_ops(), model.columns());
    let acts_once = |u: usize| !many[u] && !columns.view[u];
    // What an op writes, it may read in this step too.
    let written = |u: usize| usize::try_from(columns.alias_of[u]).ok().filter(|_| acts_once(u));
    let inside = data(model).filter(|&(_, s, d)| !many[s] && !many[d]).map(|(_, s, d)| (d, s as u32));
    let before = Csr::from_pairs(n, inside);
    let updates = |u: &usize| (acts_once(*u) && update[*u]) || written(*u).is_some_and(|of| parameter[of]);
    let mut feeds = vec![false; n];
    let mut stack: Vec<usize> = (0..n).filter(updates).collect();
    while let Some(u) = stack.pop() {
        if !std::mem::replace(&mut feeds[u], true) {
            stack.extend(before.row(u).iter().map(|&s| s as usize));
            stack.extend(written(u));
        }
    }
    let mut found = vec![false; columns.src.len()];
    data(model).for_each(|(e, s, d)| found[e] = many[s] && !many[d] && feeds[d]);
    found
}

const NONE: u32 = u32::MAX;

/// Works on storage: what a view shows belongs to the tensor that it shows. A storage has the id of
/// that tensor.
struct Gradients<'a> {
    model: &'a OpGraph,
    many: &'a [bool],
    /// Edges with data into each op.
    into: Csr<u32>,
    /// The storage behind each edge, as far as it was asked for.
    storage: Vec<u32>,
    /// Per storage: the replicated op that makes it, and its bytes.
    producer: Vec<u32>,
    bytes: Vec<u64>,
    /// Per storage, the ops but views that read it; per op, the storages that it makes.
    readers: Csr<u32>,
    made: Csr<u32>,
    is_gradient: Vec<bool>,
    /// Storages that are read, by their first reader.
    read: Vec<u32>,
}

impl<'a> Gradients<'a> {
    fn new(model: &'a OpGraph, many: &'a [bool]) -> Self {
        let (n, columns) = (model.n_ops(), model.columns());
        let n_ids = ids(model).iter().max().map_or(0, |&last| (last + 1) as usize);
        let mut found = Self {
            model,
            many,
            into: Csr::from_pairs(n, data(model).map(|(e, _, d)| (d, e as u32))),
            storage: vec![NONE; columns.src.len()],
            producer: vec![NONE; n_ids],
            bytes: vec![0; n_ids],
            readers: Csr::from_pairs(0, std::iter::empty()),
            made: Csr::from_pairs(0, std::iter::empty()),
            is_gradient: vec![false; n_ids],
            read: Vec::new(),
        };
        let (mut made, mut readers) = (Vec::new(), Vec::new());
        let mut is_read = vec![false; n_ids];
        for (e, s, d) in data(model).filter(|&(_, s, _)| many[s]) {
            let root = found.find(e);
            if !columns.view[s] {
                found.producer[root as usize] = s as u32;
                found.bytes[root as usize] = columns.bytes[e];
                made.push((s, root));
            }
            if !columns.view[d] {
                readers.push((root as usize, d as u32));
                if !std::mem::replace(&mut is_read[root as usize], true) {
                    found.read.push(root);
                }
            }
        }
        found.made = Csr::from_pairs(n, made.iter().copied());
        found.readers = Csr::from_pairs(n_ids, readers.iter().copied());
        found
    }

    /// The storage behind an edge: up through views, the first edge with data whose source is none.
    fn find(&mut self, edge: usize) -> u32 {
        let columns = self.model.columns();
        let above = |found: &Self, e: usize| {
            let source = columns.src[e] as usize;
            let first = if columns.view[source] { found.into.row(source).first() } else { None };
            first.filter(|_| found.storage[e] == NONE).map(|&e| e as usize)
        };
        let mut top = edge;
        while let Some(next) = above(self, top) {
            top = next;
        }
        let known = self.storage[top];
        let root = if known == NONE { ids(self.model)[top] as u32 } else { known };
        let mut passed = Some(edge);
        while let Some(e) = passed {
            passed = above(self, e);
            self.storage[e] = root;
        }
        root
    }

    /// Whether all that an op makes are weight gradients, and something is.
    fn makes_gradients(&self, op: u32) -> bool {
        let made = self.made.row(op as usize);
        self.is_end(op) || (!made.is_empty() && made.iter().all(|&root| self.is_gradient[root as usize]))
    }

    fn is_member(&self, op: u32) -> bool {
        self.model.columns().collective.get(op as usize).is_some_and(|&group| group >= 0)
    }

    /// Whether an op is a member of a collective that others get the results of.
    fn is_end(&self, op: u32) -> bool {
        self.is_member(op) && self.made.row(op as usize).is_empty()
    }

    fn per_edge(mut self) -> Vec<bool> {
        let columns = self.model.columns();
        let is_handed_on = |root: &u32| {
            let readers = self.readers.row(*root as usize);
            readers.iter().any(|&op| !self.many[op as usize] || self.is_end(op))
        };
        let mut stack: Vec<u32> = self.read.iter().copied().filter(is_handed_on).collect();
        while let Some(root) = stack.pop() {
            if std::mem::replace(&mut self.is_gradient[root as usize], true) {
                continue;
            }
            let op = self.producer[root as usize];
            if op == NONE || columns.flops[op as usize] > 0 || !self.makes_gradients(op) {
                continue;
            }
            let size = self.bytes[root as usize];
            let is_member = self.is_member(op);
            let before = self.into.row(op as usize).iter().filter(|&&e| {
                let (storage, source) = (self.storage[e as usize] as usize, columns.src[e as usize]);
                self.many[source as usize]
                    && self.producer[storage] != NONE
                    && (is_member || self.bytes[storage] == size)
                    && self
                        .readers
                        .row(storage)
                        .iter()
                        .all(|&r| !self.many[r as usize] || self.makes_gradients(r))
            });
            stack.extend(before.map(|&e| self.storage[e as usize]));
        }
        self.storage.iter().map(|&root| root != NONE && self.is_gradient[root as usize]).collect()
    }
}
