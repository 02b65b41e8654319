//! The validated dataflow graph every algorithm runs on: ops, tensors and who consumes them.
//!
//! Structure of arrays, compressed rows in both directions. Tensors are renumbered so that those of
//! one op are neighbours and the consumers of one tensor are one slice: "what did this op send, and
//! to whom" is a walk over consecutive memory. Besides the tensors that ops produce there may be
//! *home tensors* (weights, inputs): there from time 0 on the device of their home op, and no
//! dependency.

use crate::csr::Csr;
use crate::error::Error;
use crate::ids::{OpId, TensorId};
use crate::topo;

/// The largest number of ops, edges or tensors: 32-bit indices, with room for sums of two counts.
pub const MAX_ITEMS: usize = 1 << 30;

/// A tensor id on an edge that orders two ops without carrying data.
pub const CONTROL: i64 = -1;

/// A tensor that is there at time 0 (see [`Graph::with_homes`]).
#[derive(Clone, Debug)]
pub struct HomeTensor {
    /// The op on whose device it lives.
    pub home: OpId,
    /// The ops that read it.
    pub consumers: Vec<OpId>,
    /// The id by which the user knows it.
    pub key: u32,
}

/// An edge as given: source, destination, tensor id (or [`CONTROL`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Producer.
    pub src: OpId,
    /// Consumer.
    pub dst: OpId,
    /// The user's tensor id, or [`Edge::CONTROL`].
    pub tensor: u32,
}

impl Edge {
    /// `tensor` of a control edge.
    pub const CONTROL: u32 = u32::MAX;
}

/// A validated directed acyclic graph of ops joined by tensors. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Tensors of op `u`: `op_tensors[u]..op_tensors[u + 1]`.
    op_tensors: Vec<u32>,
    /// Producer, or home op, per tensor.
    source: Vec<OpId>,
    /// Consumers per tensor, ascending, once each.
    consumers: Csr<OpId>,
    /// Tensors that ops wait for, per op, ascending.
    inputs: Csr<TensorId>,
    /// Producer of each entry of `inputs`.
    input_ops: Vec<OpId>,
    /// Home tensors that each op reads.
    pulls: Csr<TensorId>,
    /// The user's id per tensor: what ties between transfers break by. Control messages come last.
    keys: Vec<u32>,
    /// One past the largest user id; control message of op `u` has key `control_base + u`.
    control_base: u32,
    /// Kahn order, first in first out.
    topo: Vec<OpId>,
}

impl Graph {
    /// Validates columns as a user gives them. O(V + E).
    ///
    /// Without `tensor` every op has one output, which all its edges carry. Edges that repeat
    /// another (same ends, same tensor) count once.
    ///
    /// # Errors
    /// Empty graph, columns of different length, ends or tensor ids out of range, self loops, a
    /// tensor with two producers, a cycle (named op by op).
    pub fn new(n_ops: usize, src: &[i64], dst: &[i64], tensor: Option<&[i64]>) -> Result<Self, Error> {
        let graph = Self::with_homes(n_ops, edges_of(n_ops, src, dst, tensor)?, Vec::new())?;
        graph.check_producers()?;
        Ok(graph)
    }

    /// From edges whose ends are in range, plus tensors that are there at time 0. One tensor per
    /// pair of source and tensor id: two sources may use one id.
    ///
    /// # Errors
    /// A cycle.
    pub fn with_homes(n_ops: usize, mut edges: Vec<Edge>, homes: Vec<HomeTensor>) -> Result<Self, Error> {
        sort_edges(n_ops, &mut edges);
        edges.dedup();
        let control_base = 1 + edges
            .iter()
            .map(|e| e.tensor)
            .filter(|&t| t != Edge::CONTROL)
            .chain(homes.iter().map(|h| h.key))
            .max()
            .unwrap_or(0);

        // One tensor per run of equal (src, tensor).
        let mut op_tensors = vec![0u32; n_ops + 1];
        let mut source = Vec::with_capacity(n_ops);
        let mut keys = Vec::with_capacity(n_ops);
        let mut starts = Vec::with_capacity(n_ops + 1);
        let mut consumer_items = Vec::with_capacity(edges.len());
        let mut previous = None;
        for (i, e) in edges.iter().enumerate() {
            if previous != Some((e.src, e.tensor)) {
                previous = Some((e.src, e.tensor));
                op_tensors[e.src.ix() + 1] += 1;
                source.push(e.src);
                keys.push(if e.tensor == Edge::CONTROL { control_base + e.src.0 } else { e.tensor });
                starts.push(i as u32);
            }
            consumer_items.push(e.dst);
        }
        for u in 0..n_ops {
            op_tensors[u + 1] += op_tensors[u];
        }
        let n_produced = source.len();
        for home in &homes {
            source.push(home.home);
            keys.push(home.key);
            starts.push(consumer_items.len() as u32);
            let from = consumer_items.len();
            consumer_items.extend_from_slice(&home.consumers);
            consumer_items[from..].sort_unstable();
        }
        starts.push(consumer_items.len() as u32);
        let consumers = Csr::from_parts(starts, consumer_items);

        let incoming = |range: std::ops::Range<usize>| {
            let consumers = &consumers;
            range.flat_map(move |t| consumers.row(t).iter().map(move |c| (c.ix(), TensorId::new(t))))
        };
        let inputs = Csr::from_pairs(n_ops, incoming(0..n_produced));
        let pulls = Csr::from_pairs(n_ops, incoming(n_produced..source.len()));
        let input_ops: Vec<OpId> = inputs.items().iter().map(|t| source[t.ix()]).collect();

        let mut graph = Self {
            op_tensors,
            source,
            consumers,
            inputs,
            input_ops,
            pulls,
            keys,
            control_base,
            topo: Vec::new(),
        };
        graph.topo = topo::m_topo(&graph).map_err(|cycle| Error::Cycle(cycle.into_iter().collect()))?;
        Ok(graph)
    }

    fn check_producers(&self) -> Result<(), Error> {
        let mut producer = vec![OpId::NONE; self.control_base as usize];
        for (&op, &key) in self.source.iter().zip(&self.keys).take(self.n_produced()) {
            if key < self.control_base {
                let first = std::mem::replace(&mut producer[key as usize], op);
                if !first.is_none() {
                    return Err(Error::TwoProducers { tensor: key, first: first.into(), second: op.into() });
                }
            }
        }
        Ok(())
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.op_tensors.len() - 1
    }

    /// Number of edges: pairs of a produced tensor and an op that reads it.
    pub fn n_edges(&self) -> usize {
        self.input_ops.len()
    }

    /// Number of tensors, home tensors and control messages included.
    pub fn n_tensors(&self) -> usize {
        self.source.len()
    }

    /// Number of tensors that ops produce; the rest are home tensors.
    pub fn n_produced(&self) -> usize {
        self.op_tensors[self.n_ops()] as usize
    }

    /// All ops.
    pub fn ops(&self) -> impl DoubleEndedIterator<Item = OpId> + Clone + use<> {
        (0..self.n_ops()).map(OpId::new)
    }

    /// All tensors.
    pub fn tensors(&self) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<> {
        (0..self.n_tensors()).map(TensorId::new)
    }

    /// The tensors an op produces.
    #[inline(always)]
    pub fn outputs(&self, op: OpId) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<> {
        (self.op_tensors[op.ix()]..self.op_tensors[op.ix() + 1]).map(TensorId)
    }

    /// The tensor of an op that has a certain key. O(log outputs): an op's tensors ascend by key.
    pub fn output_with_key(&self, op: OpId, key: u32) -> Option<TensorId> {
        let range = self.op_tensors[op.ix()] as usize..self.op_tensors[op.ix() + 1] as usize;
        let found = self.keys[range.clone()].binary_search(&key).ok()?;
        Some(TensorId::new(range.start + found))
    }

    /// The tensors an op waits for.
    #[inline(always)]
    pub fn inputs(&self, op: OpId) -> &[TensorId] {
        self.inputs.row(op.ix())
    }

    /// The tensors an op waits for, each with its producer.
    #[inline(always)]
    pub fn inputs_with_ops(&self, op: OpId) -> impl Iterator<Item = (TensorId, OpId)> {
        let range = self.inputs.range(op.ix());
        self.inputs.items()[range.clone()].iter().copied().zip(self.input_ops[range].iter().copied())
    }

    /// The home tensors an op reads.
    #[inline(always)]
    pub fn pulls(&self, op: OpId) -> &[TensorId] {
        self.pulls.row(op.ix())
    }

    /// The ops that read a tensor, ascending.
    #[inline(always)]
    pub fn consumers(&self, tensor: TensorId) -> &[OpId] {
        self.consumers.row(tensor.ix())
    }

    /// The ops that read any tensor of `op`; an op that reads two comes twice.
    #[inline(always)]
    pub fn successors(&self, op: OpId) -> &[OpId] {
        let (a, b) = (self.op_tensors[op.ix()] as usize, self.op_tensors[op.ix() + 1] as usize);
        self.consumers.rows(a..b)
    }

    /// Producer of a tensor, or the op at whose device a home tensor lives.
    #[inline(always)]
    pub fn source(&self, tensor: TensorId) -> OpId {
        self.source[tensor.ix()]
    }

    /// Whether the tensor is there at time 0.
    #[inline(always)]
    pub fn is_home(&self, tensor: TensorId) -> bool {
        tensor.ix() >= self.n_produced()
    }

    /// Whether the tensor is a message without data.
    pub fn is_control(&self, tensor: TensorId) -> bool {
        self.key(tensor) >= self.control_base
    }

    /// The user's tensor id; for a control message, a number past all of them.
    #[inline(always)]
    pub fn key(&self, tensor: TensorId) -> u32 {
        self.keys[tensor.ix()]
    }

    /// A topological order: Kahn's, first in first out, sources by index.
    pub fn topo(&self) -> &[OpId] {
        &self.topo
    }

    /// Number of tensors an op waits for.
    #[inline(always)]
    pub fn in_degree(&self, op: OpId) -> u32 {
        self.inputs.range(op.ix()).len() as u32
    }
}

/// Checks columns and turns them into edges.
pub(crate) fn edges_of(
    n_ops: usize,
    src: &[i64],
    dst: &[i64],
    tensor: Option<&[i64]>,
) -> Result<Vec<Edge>, Error> {
    check_counts(n_ops, src.len(), dst.len())?;
    if let Some(tensor) = tensor
        && tensor.len() != src.len()
    {
        return Err(Error::WrongLength {
            argument: "tensor",
            got: tensor.len(),
            want: src.len(),
            per: "edge",
        });
    }
    let last_tensor = n_ops + src.len() - 1;
    let mut edges = Vec::with_capacity(src.len());
    for i in 0..src.len() {
        let (s, d) = (end(n_ops, i, "src", src[i])?, end(n_ops, i, "dst", dst[i])?);
        if s == d {
            return Err(Error::SelfLoop { edge: i, op: s.into() });
        }
        let tensor = match tensor {
            None => s.0,
            Some(ids) => match ids[i] {
                CONTROL => Edge::CONTROL,
                id if id >= 0 && id as u64 <= last_tensor as u64 => id as u32,
                value => return Err(Error::BadTensorId { edge: i, value, last: last_tensor }),
            },
        };
        edges.push(Edge { src: s, dst: d, tensor });
    }
    Ok(edges)
}

/// Checks the sizes of a graph before anything is allocated for it.
pub(crate) fn check_counts(n_ops: usize, n_src: usize, n_dst: usize) -> Result<(), Error> {
    if n_ops == 0 {
        return Err(Error::EmptyGraph);
    }
    for (what, count) in [("ops", n_ops), ("edges", n_src)] {
        if count > MAX_ITEMS {
            return Err(Error::TooMany { what, count, limit: MAX_ITEMS });
        }
    }
    if n_dst != n_src {
        return Err(Error::WrongLength { argument: "dst", got: n_dst, want: n_src, per: "edge" });
    }
    Ok(())
}

/// One end of an edge, checked.
#[inline(always)]
pub(crate) fn end(n_ops: usize, edge: usize, end: &'static str, value: i64) -> Result<OpId, Error> {
    if (value as u64) < n_ops as u64 {
        Ok(OpId(value as u32))
    } else {
        Err(Error::DanglingEdge { edge, end, value, last: n_ops - 1 })
    }
}

/// By source, then tensor, then destination: two stable counting passes and tiny sorts, O(V + E).
fn sort_edges(n_ops: usize, edges: &mut Vec<Edge>) {
    let key = |e: &Edge| (e.src, e.tensor, e.dst);
    if edges.is_sorted_by_key(key) {
        return;
    }
    let by_src = Csr::from_pairs(n_ops, edges.iter().map(|e| (e.src.ix(), (e.tensor, e.dst))));
    edges.clear();
    let mut row = Vec::new();
    for u in 0..n_ops {
        row.clear();
        row.extend_from_slice(by_src.row(u));
        row.sort_unstable();
        edges.extend(row.iter().map(|&(tensor, dst)| Edge { src: OpId::new(u), dst, tensor }));
    }
}
