//! The validated dataflow graph that every algorithm runs on: ops, tensors and their consumers.
//!
//! Structure of arrays, compressed rows in both directions. Tensors are renumbered, op after op in a
//! topological order, so that those of one op are neighbours, the consumers of one tensor are one
//! slice, and a sweep over the graph walks over consecutive memory however the ops are numbered.
//! Besides the tensors that ops produce there may be *home tensors* (weights, inputs): there from time
//! 0 on the device of their home op, and no dependency.

use std::ops::Range;

use crate::csr::{Csr, Filling};
use crate::error::Error;
use crate::ids::{OpId, TensorId};
use crate::kahn::Queue;
use crate::numbering::Numbering;

/// The largest number of ops or of edges: a hundred times the largest traced graph, and few enough
/// that no number of ops can make an algorithm ask for more than a few gigabytes.
pub const MAX_ITEMS: usize = 1 << 24;

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
    /// First tensor of each op, and one past its last.
    op_tensors: Vec<(u32, u32)>,
    n_produced: usize,
    /// Producer, or home op, per tensor.
    source: Vec<OpId>,
    /// Consumers per tensor, ascending by the user's index, once each.
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
    /// A topological order.
    topo: Vec<OpId>,
    numbering: Numbering,
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
        let edges = edges_of(n_ops, src, dst, tensor)?;
        Self::with_homes(n_ops, edges, &[])?.with_one_producer_each(tensor)
    }

    /// As [`Graph::new`], with ops numbered as they run (see [`Graph::numbering`]). This suits
    /// graphs that a user gives. Errors call ops by the user's index.
    ///
    /// # Errors
    /// Those of [`Graph::new`].
    pub fn numbered(n_ops: usize, src: &[i64], dst: &[i64], tensor: Option<&[i64]>) -> Result<Self, Error> {
        let edges = edges_of(n_ops, src, dst, tensor)?;
        Self::numbered_with_homes(n_ops, edges, &[])?.with_one_producer_each(tensor)
    }

    /// Makes a graph of edges whose ends are in range, and of tensors that are there at time 0. It
    /// has one tensor per pair of source and tensor id, so two sources may use one id.
    ///
    /// # Errors
    /// A cycle.
    pub fn with_homes(
        n_ops: usize,
        edges: impl Iterator<Item = Edge> + Clone,
        homes: &[HomeTensor],
    ) -> Result<Self, Error> {
        Self::build(n_ops, edges, homes, |_| Numbering::default())
    }

    /// As [`Graph::with_homes`], with ops numbered as they run. Edges and homes name ops by the
    /// user's index.
    ///
    /// # Errors
    /// A cycle.
    pub fn numbered_with_homes(
        n_ops: usize,
        edges: impl Iterator<Item = Edge> + Clone,
        homes: &[HomeTensor],
    ) -> Result<Self, Error> {
        Self::build(n_ops, edges, homes, Numbering::by)
    }

    /// `number` makes a numbering of a topological order, if the user's numbering is none.
    fn build(
        n_ops: usize,
        edges: impl Iterator<Item = Edge> + Clone,
        homes: &[HomeTensor],
        number: impl FnOnce(&[OpId]) -> Numbering,
    ) -> Result<Self, Error> {
        let (mut tensors, topo, numbering) = Tensors::of(n_ops, edges, homes, number)?;
        let (n_produced, n_edges) = (tensors.source.len(), tensors.consumers.len());
        tensors.add(homes, &numbering);
        let inputs = tensors.read_by(n_ops, 0..n_edges);
        let pulls = tensors.read_by(n_ops, n_edges..tensors.consumers.len());
        let Tensors { op_tensors, source, keys, starts, consumers, control_base, .. } = tensors;
        let input_ops = inputs.items().iter().map(|t| source[t.ix()]).collect();
        let consumers = Csr::from_parts(starts, consumers);
        Ok(Self {
            op_tensors,
            n_produced,
            source,
            consumers,
            inputs,
            input_ops,
            pulls,
            keys,
            control_base,
            topo,
            numbering,
        })
    }

    /// Checks that no two ops produce one tensor; without tensor ids none can.
    fn with_one_producer_each(self, tensor: Option<&[i64]>) -> Result<Self, Error> {
        if tensor.is_none() {
            return Ok(self);
        }
        let mut producer = vec![OpId::NONE; self.control_base as usize];
        for (&op, &key) in self.source.iter().zip(&self.keys).take(self.n_produced()) {
            if key < self.control_base {
                let index = OpId(self.numbering.index(op));
                let first = std::mem::replace(&mut producer[key as usize], index);
                if !first.is_none() {
                    return Err(Error::TwoProducers {
                        tensor: key,
                        first: first.into(),
                        second: index.into(),
                    });
                }
            }
        }
        Ok(self)
    }

    /// The user's index of every op. [`Graph::new`] and [`Graph::with_homes`] number ops as they are
    /// given; the other constructors number them topologically, sources first and by the user's index.
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// The user's index of an op: what ties between ops break by.
    #[inline(always)]
    pub fn index(&self, op: OpId) -> u32 {
        self.numbering.index(op)
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.op_tensors.len()
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
        self.n_produced
    }

    /// All ops.
    pub fn ops(&self) -> impl DoubleEndedIterator<Item = OpId> + Clone + use<> {
        (0..self.n_ops()).map(OpId::new)
    }

    /// All ops by the user's index.
    pub fn ops_by_index(&self) -> impl Iterator<Item = OpId> + Clone {
        (0..self.n_ops() as u32).map(|index| self.numbering.op(index))
    }

    /// All tensors.
    pub fn tensors(&self) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<> {
        (0..self.n_tensors()).map(TensorId::new)
    }

    /// The tensors an op produces.
    #[inline(always)]
    pub fn outputs(
        &self,
        op: OpId,
    ) -> impl DoubleEndedIterator<Item = TensorId> + ExactSizeIterator + Clone + use<> {
        let (from, end) = self.op_tensors[op.ix()];
        (from..end).map(TensorId)
    }

    /// The tensor of an op that has a certain key. O(log outputs): an op's tensors ascend by key.
    pub fn output_with_key(&self, op: OpId, key: u32) -> Option<TensorId> {
        let (from, end) = self.op_tensors[op.ix()];
        let range = from as usize..end as usize;
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

    /// The producers of the tensors an op waits for; one of two such tensors comes twice.
    #[inline(always)]
    pub fn input_ops(&self, op: OpId) -> &[OpId] {
        &self.input_ops[self.inputs.range(op.ix())]
    }

    /// The home tensors an op reads.
    #[inline(always)]
    pub fn pulls(&self, op: OpId) -> &[TensorId] {
        self.pulls.row(op.ix())
    }

    /// The ops that read a tensor, ascending by the user's index.
    #[inline(always)]
    pub fn consumers(&self, tensor: TensorId) -> &[OpId] {
        self.consumers.row(tensor.ix())
    }

    /// The ops that read any tensor of `op`; an op that reads two comes twice.
    #[inline(always)]
    pub fn successors(&self, op: OpId) -> &[OpId] {
        let (from, end) = self.op_tensors[op.ix()];
        self.consumers.rows(from as usize..end as usize)
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

    /// A topological order: the user's numbering where that is one, else Kahn's (see
    /// [`kahn`](crate::kahn)).
    pub fn topo(&self) -> &[OpId] {
        &self.topo
    }

    /// Number of tensors an op waits for.
    #[inline(always)]
    pub fn in_degree(&self, op: OpId) -> u32 {
        self.inputs.range(op.ix()).len() as u32
    }
}

/// Checks columns and reads them as edges.
pub(crate) fn edges_of<'a>(
    n_ops: usize,
    src: &'a [i64],
    dst: &'a [i64],
    tensor: Option<&'a [i64]>,
) -> Result<impl Iterator<Item = Edge> + Clone + 'a, Error> {
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
    // A pass without branches finds whether any edge is wrong. Only then is it looked for.
    let is_wrong = |(&s, &d): (&i64, &i64)| (s as u64).max(d as u64) >= n_ops as u64 || s == d;
    if src.iter().zip(dst).fold(false, |any, ends| any | is_wrong(ends)) {
        src.iter().zip(dst).enumerate().try_for_each(|(edge, (&s, &d))| check_ends(n_ops, edge, s, d))?;
    }
    let last = n_ops + src.len() - 1;
    let bad = |&id: &i64| id != CONTROL && id as u64 > last as u64;
    if let Some((edge, &value)) = tensor.and_then(|t| t.iter().enumerate().find(|(_, id)| bad(id))) {
        return Err(Error::BadTensorId { edge, value, last });
    }
    // -1 as 32 bits is Edge::CONTROL.
    let edge = |((&s, &d), &t): ((&i64, &i64), &i64)| Edge {
        src: OpId(s as u32),
        dst: OpId(d as u32),
        tensor: t as u32,
    };
    Ok(src.iter().zip(dst).zip(tensor.unwrap_or(src)).map(edge))
}

fn check_ends(n_ops: usize, edge: usize, src: i64, dst: i64) -> Result<(), Error> {
    let last = n_ops - 1;
    for (end, value) in [("src", src), ("dst", dst)] {
        if value as u64 > last as u64 {
            return Err(Error::DanglingEdge { edge, end, value, last });
        }
    }
    if src == dst { Err(Error::SelfLoop { edge, op: OpId(src as u32).into() }) } else { Ok(()) }
}

/// Checks the sizes of a graph before anything is allocated for it.
fn check_counts(n_ops: usize, n_src: usize, n_dst: usize) -> Result<(), Error> {
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

/// The far end of an edge, in the row of its source.
trait Far: Copy + Default + Ord {
    fn of(edge: Edge) -> Self;
    fn op(self) -> OpId;
    /// The tensor on the edge, given the source.
    fn tensor(self, source: OpId) -> u32;
}

/// For graphs where each op has one tensor, whose id is the op's index.
impl Far for OpId {
    #[inline(always)]
    fn of(edge: Edge) -> Self {
        edge.dst
    }

    #[inline(always)]
    fn op(self) -> OpId {
        self
    }

    #[inline(always)]
    fn tensor(self, source: OpId) -> u32 {
        source.0
    }
}

/// The tensor, then the op, in one word, so that a row sorts as integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct End(u64);

impl Far for End {
    #[inline(always)]
    fn of(edge: Edge) -> Self {
        Self(u64::from(edge.tensor) << 32 | u64::from(edge.dst.0))
    }

    #[inline(always)]
    fn op(self) -> OpId {
        OpId(self.0 as u32)
    }

    #[inline(always)]
    fn tensor(self, _: OpId) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Sorts a row.
#[inline(always)]
fn sort(row: &mut [impl Far]) {
    // Most rows are short. A bubble sort of these has no branch to mispredict.
    if row.len() > 8 {
        return row.sort_unstable();
    }
    for end in (1..row.len()).rev() {
        for i in 0..end {
            let (a, b) = (row[i], row[i + 1]);
            (row[i], row[i + 1]) = (a.min(b), a.max(b));
        }
    }
}

/// What one pass over all edges finds.
struct Shape {
    /// Edges that end at each op.
    missing: Vec<u32>,
    /// Whether ops are numbered as they run.
    is_ordered: bool,
    /// Whether the edges of each op come in order.
    is_ascending: bool,
    control_base: u32,
}

/// Tensors as they are laid out: by source in topological order, then id, with their consumers.
struct Tensors {
    op_tensors: Vec<(u32, u32)>,
    source: Vec<OpId>,
    keys: Vec<u32>,
    starts: Vec<u32>,
    consumers: Vec<OpId>,
    /// The tensor that each of `consumers` reads, so that a loop over all of them needs no inner
    /// loop.
    read: Vec<TensorId>,
    control_base: u32,
}

impl Tensors {
    /// Lays out what ops produce, and finds a topological order and a numbering on the way: an op's row of
    /// edges is read once, when its turn comes.
    fn of(
        n_ops: usize,
        edges: impl Iterator<Item = Edge> + Clone,
        homes: &[HomeTensor],
        number: impl FnOnce(&[OpId]) -> Numbering,
    ) -> Result<(Self, Vec<OpId>, Numbering), Error> {
        let mut base = homes.iter().map(|h| h.key + 1).max().unwrap_or(0);
        let (mut is_ordered, mut is_plain, mut is_ascending) = (true, true, true);
        let mut previous = (OpId(0), OpId(0));
        let mut missing = vec![0; n_ops];
        let look = |e: Edge| {
            // A control edge's tensor wraps round to 0.
            base = base.max(e.tensor.wrapping_add(1));
            is_ordered &= e.src < e.dst;
            is_plain &= e.tensor == e.src.0;
            is_ascending &= previous <= (e.src, e.dst);
            previous = (e.src, e.dst);
            missing[e.dst.ix()] += 1;
            e.src.ix()
        };
        let filling = Filling::new(n_ops, edges.clone().map(look));
        let shape = Shape { missing, is_ordered, is_ascending, control_base: base.max(1) };
        if is_plain {
            Self::laid_out::<OpId>(edges, filling, shape, number)
        } else {
            Self::laid_out::<End>(edges, filling, Shape { is_ascending: false, ..shape }, number)
        }
    }

    fn laid_out<F: Far>(
        edges: impl Iterator<Item = Edge>,
        filling: Filling,
        shape: Shape,
        number: impl FnOnce(&[OpId]) -> Numbering,
    ) -> Result<(Self, Vec<OpId>, Numbering), Error> {
        let n_ops = shape.missing.len();
        let mut rows = filling.filled(edges.map(|e| (e.src.ix(), F::of(e))));
        let sort_row = |rows: &mut Csr<F>, u: OpId| {
            if !shape.is_ascending {
                sort(rows.row_mut(u.ix()));
            }
        };
        let mut tensors = Self::with_capacity(n_ops, rows.items().len(), shape.control_base);
        if shape.is_ordered {
            // Ops that are numbered as they run prove that there is no cycle, and need no sorting.
            let order = (0..n_ops).map(OpId::new);
            for u in order.clone() {
                sort_row(&mut rows, u);
                tensors.push(u, rows.row(u.ix()), |_| {});
            }
            tensors.close();
            return Ok((tensors, order.collect(), Numbering::default()));
        }
        let mut queue = Queue::new(shape.missing);
        while let Some(u) = queue.pop() {
            sort_row(&mut rows, u);
            tensors.push(u, rows.row(u.ix()), |v| queue.arrive(v));
        }
        tensors.close();
        let order = queue
            .into_complete(&rows, |end| end.op())
            .map_err(|cycle| Error::Cycle(cycle.into_iter().collect()))?;
        let numbering = number(&order);
        let topo: Vec<OpId> = order.iter().map(|index| numbering.op(index.0)).collect();
        tensors.renumber(&topo, &numbering);
        Ok((tensors, topo, numbering))
    }

    fn with_capacity(n_ops: usize, n_edges: usize, control_base: u32) -> Self {
        Self {
            op_tensors: Vec::with_capacity(n_ops),
            source: Vec::with_capacity(n_ops),
            keys: Vec::with_capacity(n_ops),
            starts: Vec::with_capacity(n_ops + 1),
            consumers: Vec::with_capacity(n_edges),
            read: Vec::with_capacity(n_edges),
            control_base,
        }
    }

    /// Appends an op's edges, which ascend. An edge that repeats another counts once. `follow` is
    /// called with the destination of each.
    #[inline(always)]
    fn push<F: Far>(&mut self, op: OpId, row: &[F], mut follow: impl FnMut(OpId)) {
        let from = self.source.len() as u32;
        let mut previous = None;
        for &end in row {
            let tensor = end.tensor(op);
            if previous.is_none_or(|p: F| p.tensor(op) != tensor) {
                self.source.push(op);
                self.keys.push(if tensor == Edge::CONTROL { self.control_base + op.0 } else { tensor });
                self.starts.push(self.consumers.len() as u32);
            }
            if previous != Some(end) {
                self.consumers.push(end.op());
                self.read.push(TensorId::new(self.source.len() - 1));
            }
            follow(end.op());
            previous = Some(end);
        }
        self.op_tensors.push((from, self.source.len() as u32));
    }

    /// Ends the consumers of the last tensor.
    fn close(&mut self) {
        self.starts.push(self.consumers.len() as u32);
    }

    /// Renames ops from the user's indices, in the order `topo`, to their own numbers.
    fn renumber(&mut self, topo: &[OpId], numbering: &Numbering) {
        for ops in [&mut self.source, &mut self.consumers] {
            ops.iter_mut().for_each(|op| *op = numbering.op(op.0));
        }
        if !topo.is_sorted() {
            let in_order = self.op_tensors.clone();
            topo.iter().zip(in_order).for_each(|(op, tensors)| self.op_tensors[op.ix()] = tensors);
        }
    }

    /// Appends tensors that no op produces.
    fn add(&mut self, homes: &[HomeTensor], numbering: &Numbering) {
        for home in homes {
            let tensor = TensorId::new(self.source.len());
            self.source.push(numbering.op(home.home.0));
            self.keys.push(home.key);
            let from = self.consumers.len();
            self.consumers.extend(home.consumers.iter().map(|index| numbering.op(index.0)));
            self.consumers[from..].sort_unstable_by_key(|&op| numbering.index(op));
            self.read.resize(self.consumers.len(), tensor);
            self.close();
        }
    }

    /// Per op, the tensors that it reads, ascending, of those whose consumers stand in a range.
    fn read_by(&self, n_ops: usize, consumers: Range<usize>) -> Csr<TensorId> {
        let ops = self.consumers[consumers.clone()].iter().map(|op| op.ix());
        Csr::from_pairs(n_ops, ops.zip(self.read[consumers].iter().copied()))
    }
}
