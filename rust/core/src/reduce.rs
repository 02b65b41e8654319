//! From a model's graph to the graph that algorithms run on, and back.
//!
//! About half of a traced graph costs nothing. Three kinds of op disappear:
//! * *Views*: their consumers depend on the op that made the data the view shows, and pull the
//!   view's bytes from there. That op is found along the data edges, not by `alias_of`. A view of a
//!   tensor that was changed in place must wait for the change, and `alias_of` names the owner of
//!   the storage, not the op that made the change (1,054 views of the 30 traced graphs are of this
//!   sort). A view as large as what it shows is the same tensor, sent once. Control edges into a
//!   view pass on to its consumers. Control edges out of it come from the op that made its data.
//! * *Placeholders* (parameters, buffers, inputs, constants) become home tensors. They are resident
//!   from time 0 on the device of their set's ops, or else on that of the first op that reads them. One that
//!   nobody reads is with an op that is near it in the model. Types that a placeholder allows bind that op.
//! * An in-place op stays, bound to the device of the storage's owner.
//!
//! Every edge of the reduced graph follows a path of the model's graph, hence it is acyclic and the
//! model's topological order is one of its own. O(V + E), but for control edges that views
//! multiply. These are counted first, and refused past eight times the size of the graph.

use crate::collective::{Collectives, MemberColumns};
use crate::colocate;
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::{Edge, Graph, HomeTensor};
use crate::ids::{OpId, StorageId, TensorId};
use crate::opgraph::OpGraph;
use crate::union::Union;
use crate::workload::{ANY_TYPE, Lifetime, Storage, Workload, joined};

/// The graph that algorithms run on, and how it maps to the model's.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// What is placed and simulated.
    pub work: Workload,
    /// Per op of the model: the op of the reduced graph on whose device it sits.
    pub map: Vec<OpId>,
    /// Per op of the reduced graph: the op of the model that it is.
    pub op_of: Vec<OpId>,
    /// Per op of the model: the op or placeholder of the model whose data it shows; itself if it is
    /// no view.
    pub shows: Vec<OpId>,
}

/// A distinct piece of data that ops send: a tensor, or a part of one that a view shows.
#[derive(Clone, Copy, Debug)]
struct Value {
    /// The op or placeholder of the model that makes it.
    source: OpId,
    /// The model's id of the tensor.
    key: u32,
    bytes: u64,
    /// Where it lies; none for placeholders' resident memory.
    storage: StorageId,
    used: bool,
}

const NONE: u32 = u32::MAX;

/// Everything known while walking the model's graph in topological order.
struct Walk<'a> {
    model: &'a OpGraph,
    values: Vec<Value>,
    /// Value per tensor of the model; [`NONE`] for control edges.
    value_of: Vec<u32>,
    /// Storages in order of discovery, with the model's op.
    storages: Vec<Storage>,
    /// Per op: itself, or for a view the op or placeholder whose data it shows.
    real: Vec<OpId>,
    /// Per view: ops that its consumers must also wait for, as a range of `pending`.
    pending_of: Vec<(u32, u32)>,
    pending: Vec<OpId>,
    edges: Vec<Edge>,
    /// Pairs of a value and an op that reads it, for values of placeholders.
    pulls: Vec<(u32, OpId)>,
    limit: usize,
}

/// Reduces a model's graph. `allowed` is a mask of device types per op of the model; empty: all types.
///
/// # Errors
/// Control edges through views that would multiply past eight times the graph; colocated ops that no
/// device type allows together.
pub fn reduce(model: &OpGraph, allowed: &[u64]) -> Result<Reduced, Error> {
    let n = model.n_ops();
    if !allowed.is_empty() && allowed.len() != n {
        return Err(Error::WrongLength { argument: "allowed", got: allowed.len(), want: n, per: "op" });
    }
    let allowed = if allowed.is_empty() { vec![ANY_TYPE; n] } else { allowed.to_vec() };
    reduce_unnamed(model, allowed).map_err(|e| e.with_names(|op| model.columns.name.get(op.ix()).cloned()))
}

fn reduce_unnamed(model: &OpGraph, allowed: Vec<u64>) -> Result<Reduced, Error> {
    walked(model)?.finish(allowed)
}

fn walked(model: &OpGraph) -> Result<Walk<'_>, Error> {
    let mut walk = Walk::new(model);
    for &u in model.graph.topo() {
        if model.is_view(u) {
            walk.view(u)?;
        } else if model.is_placeholder(u) {
            walk.placeholder(u);
        } else {
            walk.op(u)?;
        }
    }
    Ok(walk)
}

/// How the tensors of a model are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Pairs of the ids of a tensor and of the tensor whose data it is; they differ where a view shows all
    /// of it. Messages without data are left out.
    pub as_tensor: Vec<(u32, u32)>,
    /// Per view that shows data, the op and the id of the tensor that it shows.
    pub shown: Vec<(OpId, u32)>,
}

/// How the tensors of a model are sent. O(V + E).
///
/// # Errors
/// Those of [`reduce`] about control edges.
pub fn sent(model: &OpGraph) -> Result<Sent, Error> {
    let (walk, graph) = (walked(model)?, &model.graph);
    let with_data = graph.tensors().zip(&walk.value_of).filter(|(_, value)| **value != NONE);
    let as_tensor = with_data.map(|(t, &value)| (graph.key(t), walk.values[value as usize].key)).collect();
    let views = graph.ops().filter(|&u| model.is_view(u));
    let shown = views.filter_map(|u| Some((u, graph.key(model.data_input(u)?)))).collect();
    Ok(Sent { as_tensor, shown })
}

impl<'a> Walk<'a> {
    fn new(model: &'a OpGraph) -> Self {
        let (n, m) = (model.n_ops(), model.graph.n_edges());
        Self {
            model,
            values: Vec::with_capacity(model.graph.n_tensors()),
            value_of: vec![NONE; model.graph.n_tensors()],
            storages: Vec::new(),
            real: (0..n).map(OpId::new).collect(),
            pending_of: vec![(0, 0); n],
            pending: Vec::new(),
            edges: Vec::with_capacity(m),
            pulls: Vec::new(),
            limit: 8 * (n + m) + 1024,
        }
    }

    /// The tensors with data that `u` gives out.
    fn data_outputs(&self, u: OpId) -> impl Iterator<Item = TensorId> + use<'a> {
        let graph = &self.model.graph;
        graph.outputs(u).filter(|&t| !graph.is_control(t))
    }

    fn new_value(&mut self, tensor: TensorId, source: OpId, storage: StorageId) {
        self.value_of[tensor.ix()] = self.values.len() as u32;
        self.values.push(Value {
            source,
            key: self.model.graph.key(tensor),
            bytes: self.model.tensor_bytes[tensor.ix()],
            storage,
            used: false,
        });
    }

    fn placeholder(&mut self, u: OpId) {
        for t in self.data_outputs(u) {
            self.new_value(t, u, StorageId::NONE);
        }
    }

    fn view(&mut self, u: OpId) -> Result<(), Error> {
        let graph = &self.model.graph;
        let Some(shown) = self.model.data_input(u) else { return Ok(()) };
        let base = self.value_of[shown.ix()];
        let base_value = self.values[base as usize];
        self.real[u.ix()] = base_value.source;
        for t in self.data_outputs(u) {
            let forwarded = graph.inputs(u).iter().find(|&&i| graph.key(i) == graph.key(t));
            if let Some(input) = forwarded {
                self.value_of[t.ix()] = self.value_of[input.ix()];
            } else if self.model.tensor_bytes[t.ix()] >= base_value.bytes {
                self.value_of[t.ix()] = base;
            } else {
                self.new_value(t, base_value.source, base_value.storage);
            }
        }
        // The view's consumers also wait for everything that the view waits for besides the data it
        // shows.
        let others = graph.inputs_with_ops(u).filter(|&(t, _)| t != shown).map(|(_, s)| self.real[s.ix()]);
        let own: Vec<OpId> = others.filter(|&op| !self.model.is_placeholder(op)).collect();
        let inherited = graph.inputs_with_ops(u).map(|(_, s)| self.pending_of[s.ix()]);
        let inherited: Vec<(u32, u32)> = inherited.filter(|(a, b)| a < b).collect();
        self.pending_of[u.ix()] = match (&own[..], &inherited[..]) {
            // A chain of views shares one list.
            ([], [one]) => *one,
            _ => {
                let from = self.pending.len() as u32;
                for (a, b) in inherited {
                    self.pending.extend_from_within(a as usize..b as usize);
                    self.check_limit(u)?;
                }
                self.pending.extend(own);
                self.check_limit(u)?;
                (from, self.pending.len() as u32)
            }
        };
        Ok(())
    }

    fn check_limit(&self, u: OpId) -> Result<(), Error> {
        let count = self.pending.len() + self.edges.len();
        if count > self.limit { Err(Error::ControlFanout { op: u.into(), count }) } else { Ok(()) }
    }

    fn op(&mut self, u: OpId) -> Result<(), Error> {
        let graph = &self.model.graph;
        for (t, s) in graph.inputs_with_ops(u) {
            let value = self.value_of[t.ix()];
            let source = self.real[s.ix()];
            if value == NONE {
                if !self.model.is_placeholder(source) {
                    self.edges.push(Edge { src: source, dst: u, tensor: Edge::CONTROL });
                }
            } else {
                let v = &mut self.values[value as usize];
                v.used = true;
                if self.model.is_placeholder(v.source) {
                    self.pulls.push((value, u));
                } else {
                    self.edges.push(Edge { src: v.source, dst: u, tensor: v.key });
                }
            }
            let (a, b) = self.pending_of[s.ix()];
            let waits = self.pending[a as usize..b as usize].iter();
            self.edges.extend(waits.map(|&src| Edge { src, dst: u, tensor: Edge::CONTROL }));
            self.check_limit(s)?;
        }
        self.allocate(u);
        Ok(())
    }

    /// The op's storages and values.
    fn allocate(&mut self, u: OpId) {
        let c = &self.model.columns;
        let in_place = self.changed_in_place(u);
        let mut left = c.output_bytes[u.ix()];
        let lifetime = Lifetime::UntilUsed;
        for t in self.data_outputs(u) {
            let bytes = self.model.tensor_bytes[t.ix()];
            let storage = match in_place {
                Some(storage) => storage,
                None if bytes == 0 => StorageId::NONE,
                None => {
                    left = left.saturating_sub(bytes);
                    self.storages.push(Storage { op: u, bytes, lifetime });
                    StorageId::new(self.storages.len() - 1)
                }
            };
            self.new_value(t, u, storage);
        }
        if left > 0 {
            self.storages.push(Storage { op: u, bytes: left, lifetime });
        }
    }

    /// The storage that `u` changes in place: that of the input that lies with the op which `u`
    /// aliases. `Some(NONE)` is a placeholder's resident memory.
    fn changed_in_place(&self, u: OpId) -> Option<StorageId> {
        let alias = self.model.columns.alias_of[u.ix()];
        if alias < 0 {
            return None;
        }
        let owner = self.real[alias as usize];
        let values = self.model.graph.inputs(u).iter().map(|t| self.value_of[t.ix()]).filter(|&v| v != NONE);
        let lies_with_owner = |v: &Value| match v.storage {
            StorageId::NONE => v.source == owner,
            s => self.storages[s.ix()].op == owner,
        };
        let found = values.map(|v| self.values[v as usize]).find(lies_with_owner);
        found.map(|v| v.storage).or(Some(StorageId::NONE))
    }

    /// Renumbers what the walk found and makes a workload of it.
    fn finish(mut self, allowed: Vec<u64>) -> Result<Reduced, Error> {
        let model = self.model;
        self.mark_outputs();
        let homes = self.homes(allowed)?;
        let mut index = vec![OpId::NONE; model.n_ops()];
        let mut op_of = Vec::with_capacity(model.n_ops());
        for u in model.graph.ops().filter(|&u| !model.is_view(u) && !model.is_placeholder(u)) {
            index[u.ix()] = OpId::new(op_of.len());
            op_of.push(u);
        }
        if op_of.is_empty() {
            return Err(Error::EmptyGraph);
        }
        let k = op_of.len();
        let map: Vec<OpId> = homes.anchor.iter().map(|a| index[a.ix()]).collect();
        for e in &mut self.edges {
            e.src = index[e.src.ix()];
            e.dst = index[e.dst.ix()];
        }
        let home_tensors = self.home_tensors(&index, &map);
        let (set_of, sets) = homes.sets_of(&index, k);

        // Up to here ops are numbered as in the model, from here on as they run.
        let graph = Graph::numbered_with_homes(k, self.edges.iter().copied(), &home_tensors)?;
        let numbering = graph.numbering();
        let numbered = |op: &OpId| if op.is_none() { *op } else { numbering.op(op.0) };
        let index: Vec<OpId> = index.iter().map(numbered).collect();
        let map: Vec<OpId> = map.iter().map(numbered).collect();
        let op_of = numbering.by_op(op_of, 1);
        let (set_of, sets) = numbering.sets(set_of, sets);

        let (resident, workspace) = self.memory(&map, k);
        let (storages, op_storages, moved_to) = self.sort_storages(&op_of, &index);
        let (tensor_bytes, tensor_storage) = self.tensors(&graph, &moved_to);
        let reader = |set: usize| {
            let user_set = homes.set_of[op_of[sets.row(set)[0].ix()].ix()] as usize;
            let reader = homes.reader[user_set];
            (!reader.is_none()).then(|| index[reader.ix()])
        };
        let allowed: Vec<u64> = op_of.iter().map(|u| homes.allowed[u.ix()]).collect();
        let lead = colocate::leads(&graph, &set_of, &sets, reader, &allowed);
        let mut work = Workload {
            graph,
            tensor_bytes,
            tensor_storage,
            storages,
            op_storages,
            resident,
            workspace,
            set_of,
            sets,
            allowed,
            lead,
            collectives: Collectives::default(),
        };
        work.collectives = collectives(model, &work, &op_of)?;
        Ok(Reduced { work, map, op_of, shows: self.real })
    }

    /// Resident bytes and workspace of the `k` ops of the reduced graph, from those of all ops that sit with
    /// them.
    fn memory(&self, map: &[OpId], k: usize) -> (Vec<u64>, Vec<u64>) {
        let (model, c) = (self.model, &self.model.columns);
        let (mut resident, mut workspace) = (vec![0u64; k], vec![0u64; k]);
        for u in model.graph.ops() {
            let held = if model.is_placeholder(u) {
                c.resident[u.ix()].max(c.output_bytes[u.ix()])
            } else {
                c.resident[u.ix()]
            };
            let at = map[u.ix()].ix();
            resident[at] = resident[at].saturating_add(held);
            workspace[at] = workspace[at].max(c.workspace[u.ix()]);
        }
        (resident, workspace)
    }

    /// Bytes and storage of each tensor of the reduced graph. `moved_to` is the new id of each
    /// storage.
    fn tensors(&self, graph: &Graph, moved_to: &[StorageId]) -> (Vec<u64>, Vec<StorageId>) {
        let mut value_of_key = vec![NONE; self.values.iter().map(|v| v.key as usize + 1).max().unwrap_or(0)];
        for (i, v) in self.values.iter().enumerate() {
            value_of_key[v.key as usize] = i as u32;
        }
        let tensor = |t: TensorId| {
            if graph.is_control(t) {
                return (0, StorageId::NONE);
            }
            let value = &self.values[value_of_key[graph.key(t) as usize] as usize];
            let lies_in = value.storage;
            (value.bytes, if lies_in.is_none() { lies_in } else { moved_to[lies_in.ix()] })
        };
        graph.tensors().map(tensor).unzip()
    }

    /// Marks the graph's outputs, which live to the end: all that is written by an op none of whose
    /// data is read.
    fn mark_outputs(&mut self) {
        let mut read = vec![false; self.model.n_ops()];
        for v in self.values.iter().filter(|v| v.used) {
            read[v.source.ix()] = true;
        }
        for v in self.values.iter().filter(|v| !v.storage.is_none() && !read[v.source.ix()]) {
            self.storages[v.storage.ix()].lifetime = Lifetime::UntilEnd;
        }
        for s in self.storages.iter_mut().filter(|s| !read[s.op.ix()]) {
            s.lifetime = Lifetime::UntilEnd;
        }
        // An in-place op without readers has no value. The storage that it changed is an output as
        // well.
        let unread = self
            .model
            .graph
            .ops()
            .filter(|&u| !read[u.ix()] && !self.model.is_view(u) && !self.model.is_placeholder(u));
        for u in unread {
            if let Some(storage) = self.changed_in_place(u).filter(|s| !s.is_none()) {
                self.storages[storage.ix()].lifetime = Lifetime::UntilEnd;
            }
        }
    }

    /// Storages grouped by op, where each op's begin, and the new id of each storage.
    fn sort_storages(&self, op_of: &[OpId], index: &[OpId]) -> (Vec<Storage>, Vec<u32>, Vec<StorageId>) {
        let rows = self.storages.iter().enumerate().map(|(i, s)| (index[s.op.ix()].ix(), i as u32));
        let by_op = Csr::from_pairs(op_of.len(), rows);
        let mut op_storages = vec![0u32];
        let mut moved_to = vec![StorageId::NONE; self.storages.len()];
        let mut storages = Vec::with_capacity(self.storages.len());
        for u in 0..op_of.len() {
            for &i in by_op.row(u) {
                moved_to[i as usize] = StorageId::new(storages.len());
                storages.push(Storage { op: OpId::new(u), ..self.storages[i as usize] });
            }
            op_storages.push(storages.len() as u32);
        }
        (storages, op_storages, moved_to)
    }

    /// The tensors of placeholders that are read, each with its home.
    fn home_tensors(&self, index: &[OpId], map: &[OpId]) -> Vec<HomeTensor> {
        let consumers =
            Csr::from_pairs(self.values.len(), self.pulls.iter().map(|&(v, op)| (v as usize, op)));
        let mut homes: Vec<HomeTensor> = (0..self.values.len())
            .filter(|&v| !consumers.row(v).is_empty())
            .map(|v| {
                let mut readers: Vec<OpId> = consumers.row(v).iter().map(|op| index[op.ix()]).collect();
                readers.sort_unstable();
                readers.dedup();
                HomeTensor {
                    home: map[self.values[v].source.ix()],
                    consumers: readers,
                    key: self.values[v].key,
                }
            })
            .collect();
        homes.sort_unstable_by_key(|h| h.key);
        homes
    }

    /// Sets of ops of the model that share a device, and the op that each set is placed with.
    fn homes(&self, mut allowed: Vec<u64>) -> Result<Homes, Error> {
        let model = self.model;
        let n = model.n_ops();
        let mut union = joined(&model.columns.colocation);
        for u in 0..n {
            union.join(u, self.real[u].ix());
            let alias = model.columns.alias_of[u];
            if alias >= 0 {
                union.join(u, self.real[alias as usize].ix());
            }
        }
        let (set_of, sets) = union.sets(n);
        colocate::share_allowed(&sets, &mut allowed)?;

        let mut position = vec![0u32; n];
        model.graph.topo().iter().enumerate().for_each(|(i, u)| position[u.ix()] = i as u32);
        let earlier =
            |a: OpId, b: OpId| if a.is_none() || position[b.ix()] < position[a.ix()] { b } else { a };
        let mut member = vec![OpId::NONE; sets.n_rows()];
        let mut reader = vec![OpId::NONE; sets.n_rows()];
        let mut near = vec![OpId::NONE; sets.n_rows()];
        for u in (0..n).filter(|&u| model.columns.near[u] >= 0) {
            near[set_of[u] as usize] = OpId::new(model.columns.near[u] as usize);
        }
        let mut first_op = OpId::NONE;
        for u in model.graph.ops().filter(|&u| !model.is_view(u) && !model.is_placeholder(u)) {
            let set = set_of[u.ix()] as usize;
            member[set] = earlier(member[set], u);
            first_op = earlier(first_op, u);
        }
        for &(value, op) in &self.pulls {
            let set = set_of[self.values[value as usize].source.ix()] as usize;
            reader[set] = earlier(reader[set], op);
        }
        let anchor = (0..n)
            .map(|u| {
                let real = self.real[u];
                if !model.is_placeholder(real) {
                    return real;
                }
                let set = set_of[u] as usize;
                [member[set], reader[set], near[set], first_op]
                    .into_iter()
                    .find(|op| !op.is_none())
                    .unwrap_or(OpId::NONE)
            })
            .collect::<Vec<_>>();
        if first_op.is_none() {
            return Err(Error::EmptyGraph);
        }
        allow_placeholders(model, &anchor, &set_of, &sets, &mut allowed)?;
        Ok(Homes { set_of, sets, reader, anchor, allowed })
    }
}

/// Keeps every op that a placeholder sits with, and the ops of its set, to the types that the
/// placeholder allows.
///
/// # Errors
/// The two allow no type in common.
fn allow_placeholders(
    model: &OpGraph,
    anchor: &[OpId],
    set_of: &[u32],
    sets: &Csr<OpId>,
    allowed: &mut [u64],
) -> Result<(), Error> {
    for u in model.graph.ops().filter(|&u| model.is_placeholder(u)) {
        let host = anchor[u.ix()];
        let both = allowed[u.ix()] & allowed[host.ix()];
        if both == 0 {
            return Err(Error::NoCommonType { first: u.into(), second: host.into() });
        }
        if both != allowed[host.ix()] {
            sets.row(set_of[host.ix()] as usize).iter().for_each(|op| allowed[op.ix()] = both);
        }
    }
    Ok(())
}

/// The collectives of the model, whose members are ops of the reduced graph.
fn collectives(model: &OpGraph, work: &Workload, op_of: &[OpId]) -> Result<Collectives, Error> {
    let columns = model.columns.members();
    if columns.group.is_empty() {
        return Ok(Collectives::default());
    }
    let by_index = work.graph.numbering().by_index(op_of.to_vec());
    let group: Vec<i64> = by_index.iter().map(|op| columns.group[op.ix()]).collect();
    let kind: Vec<u8> = by_index.iter().map(|op| columns.kind[op.ix()]).collect();
    let runs: Vec<u64> = by_index.iter().filter_map(|op| columns.runs.get(op.ix()).copied()).collect();
    let members = MemberColumns { group: &group, kind: &kind, runs: &runs };
    let found = Collectives::of(&work.graph, members, |op| work.sent(op));
    found.map_err(|error| error.with_indices(|index| by_index[index.ix()].0))
}

/// With which ops the ops of the model are placed.
struct Homes {
    set_of: Vec<u32>,
    sets: Csr<OpId>,
    /// Per set: the first op that reads one of its placeholders.
    reader: Vec<OpId>,
    /// Per op of the model: the op of the model whose device it shares; never a view or placeholder.
    anchor: Vec<OpId>,
    allowed: Vec<u64>,
}

impl Homes {
    /// The sets of the `k` ops that are kept. `index` is the number of each op of the model, none
    /// if the op is not kept.
    fn sets_of(&self, index: &[OpId], k: usize) -> (Vec<u32>, Csr<OpId>) {
        let mut union = Union::new(k);
        for members in (0..self.sets.n_rows()).map(|s| self.sets.row(s)) {
            let mut ops = members.iter().map(|u| index[u.ix()]).filter(|i| !i.is_none());
            if let Some(first) = ops.next() {
                ops.for_each(|op| union.join(first.ix(), op.ix()));
            }
        }
        union.sets(k)
    }
}
