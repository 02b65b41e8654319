//! Copies of ops in replicas, and ops that are added between them. O(k (V + E)) for k replicas.
//!
//! Ops keep their order, and the copies of an op are neighbours. An op that is added stands right
//! before or right after the copies of an op. Edges keep the order of the source's, by which an op
//! tells its arguments apart: the copies of an edge come first, then the links at its place.

use crate::csr::Csr;
use crate::error::Error;
use crate::graph::MAX_ITEMS;
use crate::opgraph::{OpColumns, OpGraph};

/// Which replicas have a copy of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Each has its own.
    Each,
    /// One replica. The others read what it makes.
    Only(u32),
    /// There is one copy, which is in no replica.
    Common,
}

/// What becomes of the ops and edges of a graph.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Parts of the batch that each replica works on.
    pub rows: Vec<u64>,
    /// Per op, where it is.
    pub home: Vec<Home>,
    /// Per op, whether its replicas have shares of its work by `rows`.
    pub by_rows: Vec<bool>,
    /// Per op, whether its copies have equal shares of all that it is.
    pub even: Vec<bool>,
    /// Of ops that are shared by rows, the bytes that every copy accesses, outputs and keeps whole.
    pub whole_accessed: Vec<u64>,
    /// See `whole_accessed`.
    pub whole_output: Vec<u64>,
    /// See `whole_accessed`.
    pub whole_resident: Vec<u64>,
    /// Per edge, whether it is copied. Else links stand for it.
    pub stays: Vec<bool>,
    /// Per edge, whether its bytes go by `rows`.
    pub along: Vec<bool>,
}

/// Ops that are added; one value per op in each column.
#[derive(Clone, Debug)]
pub struct Added {
    /// The op of the source that it stands next to.
    pub place: Vec<u32>,
    /// Whether it stands before the copies of that op.
    pub is_before: Vec<bool>,
    /// The op of the source that it serves.
    pub serves: Vec<u32>,
    /// The replica that it is in, -1: none.
    pub replica: Vec<i32>,
    /// The collective that it is a member of, -1: none, and that collective's kind.
    pub collective: Vec<i64>,
    /// See `collective`.
    pub kind: Vec<u8>,
    /// What it computes, accesses and makes.
    pub flops: Vec<u64>,
    /// See `flops`.
    pub accessed: Vec<u64>,
    /// See `flops`.
    pub output: Vec<u64>,
}

/// Edges that are no copies. An end is `op * k + replica` for the copy of an op in that replica, and
/// `n_ops * k + i` for the added op `i`.
#[derive(Clone, Debug)]
pub struct Links {
    /// The edge of the source that each stands for; the number of edges: none. Ascending.
    pub place: Vec<u32>,
    /// Producer.
    pub src: Vec<u64>,
    /// Consumer.
    pub dst: Vec<u64>,
    /// Tensor id: in replica `r`, the source's id plus `r` times one more than the largest of them. -1:
    /// no data. Ids from `k` times that on are free.
    pub tensor: Vec<i64>,
    /// Bytes of the tensor.
    pub bytes: Vec<u64>,
}

/// A graph of replicas, and what each of its ops is.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// The graph.
    pub graph: OpGraph,
    /// The op of the source that each op is a copy of or serves.
    pub serves: Vec<i32>,
    /// The replica that each op is in, -1: none.
    pub replica: Vec<i32>,
    /// Which of the added ops each op is, -1: a copy.
    pub added: Vec<i32>,
}

/// Shares of `total` by parts that end at `ends`: whole numbers that add up to it.
#[derive(Clone, Debug)]
pub struct Shares {
    ends: Vec<u64>,
}

impl Shares {
    /// In proportion to `rows`.
    pub fn new(rows: &[u64]) -> Self {
        let mut ends = vec![0u64];
        ends.extend(rows.iter().scan(0u64, |sum, row| {
            *sum = sum.saturating_add(*row);
            Some(*sum)
        }));
        Self { ends }
    }

    /// Of the first `part` parts together, rounded up.
    fn up_to(&self, total: u64, part: usize) -> u64 {
        let (end, size) = (self.ends[part], self.ends[self.ends.len() - 1]);
        let (whole, rest) = (total / size, total % size);
        // In two steps, so that most products fit in 64 bits.
        let more = match rest.checked_mul(end).and_then(|product| product.checked_add(size - 1)) {
            Some(product) => product / size,
            None => ((u128::from(rest) * u128::from(end)).div_ceil(u128::from(size))) as u64,
        };
        whole * end + more
    }

    /// Of one part.
    pub fn of(&self, total: u64, part: usize) -> u64 {
        if total == 0 { 0 } else { self.up_to(total, part + 1) - self.up_to(total, part) }
    }
}

/// Where the new ops are.
struct Numbers<'a> {
    k: usize,
    home: &'a [Home],
    /// The first copy of each op.
    first: Vec<u32>,
    /// Each added op.
    added: Vec<u32>,
}

impl Numbers<'_> {
    /// The copy of an op that an op in a replica reads, and that copy's replica.
    fn read_in(&self, op: usize, replica: usize) -> (u32, usize) {
        match self.home[op] {
            Home::Each => (self.first[op] + replica as u32, replica),
            Home::Only(only) => (self.first[op], only as usize),
            Home::Common => (self.first[op], 0),
        }
    }

    /// The copy of an op that is in a replica or in none.
    fn copy_in(&self, op: usize, replica: usize) -> Option<u32> {
        match self.home[op] {
            Home::Only(only) if only as usize != replica => None,
            _ => Some(self.read_in(op, replica).0),
        }
    }

    /// The replicas in which an op has copies.
    fn replicas(&self, op: usize) -> std::ops::Range<usize> {
        match self.home[op] {
            Home::Each => 0..self.k,
            Home::Only(only) => only as usize..only as usize + 1,
            Home::Common => 0..1,
        }
    }

    /// The op at an end of a link.
    fn end(&self, end: u64) -> u32 {
        let (op, replica) = (end as usize / self.k, end as usize % self.k);
        match self.first.get(op) {
            Some(_) => self.read_in(op, replica).0,
            None => self.added[end as usize - self.first.len() * self.k],
        }
    }
}

/// The graph of replicas.
///
/// # Errors
/// A cycle; more ops or edges than a graph may have, if each replica had all of them.
pub fn expand(source: &OpGraph, copies: &Copies, added: &Added, links: &Links) -> Result<Expanded, Error> {
    let k = copies.rows.len();
    for (what, each, more) in
        [("ops", source.n_ops(), added.place.len()), ("edges", source.columns().src.len(), links.place.len())]
    {
        let count = each.saturating_mul(k).saturating_add(more);
        if count > MAX_ITEMS {
            return Err(Error::TooMany { what, count, limit: MAX_ITEMS });
        }
    }
    let mut made = Making::new(source, copies, added);
    for op in 0..source.n_ops() {
        made.add_next_to(op, true);
        made.copy(op);
        made.add_next_to(op, false);
    }
    made.finish(links)
}

/// Columns as they grow.
struct Making<'a> {
    source: &'a OpColumns,
    copies: &'a Copies,
    added: &'a Added,
    by_rows: Shares,
    even: Shares,
    numbers: Numbers<'a>,
    /// Added ops by the op that they stand before (even rows) or after (odd rows).
    beside: Csr<u32>,
    columns: OpColumns,
    serves: Vec<i32>,
    replica: Vec<i32>,
    which: Vec<i32>,
}

impl<'a> Making<'a> {
    fn new(source: &'a OpGraph, copies: &'a Copies, added: &'a Added) -> Self {
        let (n, k) = (source.n_ops(), copies.rows.len());
        let places = added.place.iter().zip(&added.is_before).enumerate();
        let rows = places.map(|(i, (&op, &before))| (2 * op as usize + usize::from(!before), i as u32));
        let beside = Csr::from_pairs(2 * n, rows);
        let ops = n * k + added.place.len();
        let mut columns = OpColumns::default();
        let c = &mut columns;
        for sizes in [&mut c.flops, &mut c.accessed, &mut c.output_bytes, &mut c.resident, &mut c.workspace] {
            sizes.reserve(ops);
        }
        for indices in [&mut c.alias_of, &mut c.near, &mut c.colocation] {
            indices.reserve(ops);
        }
        Self {
            source: source.columns(),
            copies,
            added,
            by_rows: Shares::new(&copies.rows),
            even: Shares::new(&vec![1; k]),
            numbers: Numbers {
                k,
                home: &copies.home,
                first: Vec::with_capacity(n),
                added: vec![0; added.place.len()],
            },
            beside,
            columns,
            serves: Vec::with_capacity(ops),
            replica: Vec::with_capacity(ops),
            which: Vec::with_capacity(ops),
        }
    }

    /// Appends the ops that are added right before an op, or right after it.
    fn add_next_to(&mut self, op: usize, is_before: bool) {
        let (added, c) = (self.added, &mut self.columns);
        for &i in self.beside.row(2 * op + usize::from(!is_before)) {
            let at = i as usize;
            self.numbers.added[at] = self.serves.len() as u32;
            self.serves.push(added.serves[at] as i32);
            self.replica.push(added.replica[at]);
            self.which.push(i as i32);
            c.flops.push(added.flops[at]);
            c.accessed.push(added.accessed[at]);
            c.output_bytes.push(added.output[at]);
            c.resident.push(0);
            c.workspace.push(0);
        }
    }

    /// Appends the copies of an op.
    fn copy(&mut self, op: usize) {
        let (source, copies) = (self.source, self.copies);
        self.numbers.first.push(self.serves.len() as u32);
        for r in self.numbers.replicas(op) {
            self.serves.push(op as i32);
            self.replica.push(if copies.home[op] == Home::Common { -1 } else { r as i32 });
            self.which.push(-1);
            let share = |total: u64, whole: u64| {
                if copies.even[op] {
                    self.even.of(total, r)
                } else if copies.by_rows[op] {
                    self.by_rows.of(total.saturating_sub(whole), r) + whole
                } else {
                    total
                }
            };
            let c = &mut self.columns;
            c.flops.push(share(source.flops[op], 0));
            c.accessed.push(share(source.accessed[op], copies.whole_accessed[op]));
            c.output_bytes.push(share(source.output_bytes[op], copies.whole_output[op]));
            c.resident.push(share(source.resident[op], copies.whole_resident[op]));
            c.workspace.push(share(source.workspace[op], 0));
        }
    }

    fn finish(mut self, links: &Links) -> Result<Expanded, Error> {
        self.join_ops();
        self.join_edges(links);
        let Self { columns, serves, replica, which, .. } = self;
        Ok(Expanded { graph: OpGraph::made(columns)?, serves, replica, added: which })
    }

    /// The columns that name other ops, and those of sets and kinds.
    fn join_ops(&mut self) {
        let (source, added, numbers) = (self.source, self.added, &self.numbers);
        let c = &mut self.columns;
        let is_any = added.collective.iter().any(|&group| group >= 0);
        for (i, (&serves, &replica)) in self.serves.iter().zip(&self.replica).enumerate() {
            let (op, r) = (serves as usize, replica.max(0) as usize);
            let which = usize::try_from(self.which[i]).ok();
            let is_copy = which.is_none();
            let named = |column: &[i64]| usize::try_from(column[op]).ok().filter(|_| is_copy);
            let alias = named(&source.alias_of).and_then(|of| numbers.copy_in(of, r));
            c.alias_of.push(alias.map_or(-1, i64::from));
            c.near.push(named(&source.near).map_or(-1, |near| i64::from(numbers.first[near])));
            let set = named(&source.colocation).map_or(-1, |set| (set * numbers.k + r) as i64);
            c.colocation.push(set);
            c.view.push(is_copy && source.view[op]);
            c.placeholder.push(is_copy && source.placeholder[op]);
            if is_any {
                c.collective.push(which.map_or(-1, |at| added.collective[at]));
                c.collective_kind.push(which.map_or(0, |at| added.kind[at]));
            }
        }
    }

    /// Copies of edges, and links, with tensors numbered without gaps.
    fn join_edges(&mut self, links: &Links) {
        let m = self.source.src.len();
        let ids = self.source.tensor.as_deref().unwrap_or(&self.source.src);
        let stride = ids.iter().max().map_or(0, |&last| last + 1);
        let mut found = Edges::with_capacity(m * self.numbers.k + links.place.len());
        let mut next = 0;
        let mut link_up_to = |found: &mut Edges, place: usize| {
            while links.place.get(next).is_some_and(|&at| at as usize <= place) {
                let ends = (self.numbers.end(links.src[next]), self.numbers.end(links.dst[next]));
                found.push(ends, links.tensor[next], links.bytes[next]);
                next += 1;
            }
        };
        for (e, &id) in ids.iter().enumerate() {
            if self.copies.stays[e] {
                self.copy_edge(e, id, stride, &mut found);
            }
            link_up_to(&mut found, e);
        }
        link_up_to(&mut found, m);
        close_gaps(&mut found.tensor);
        let c = &mut self.columns;
        (c.src, c.dst, c.tensor, c.bytes) = (found.src, found.dst, Some(found.tensor), found.bytes);
    }

    /// A copy of an edge for each copy of the op that it ends at.
    fn copy_edge(&self, e: usize, id: i64, stride: i64, found: &mut Edges) {
        let (src, dst, total) =
            (self.source.src[e] as usize, self.source.dst[e] as usize, self.source.bytes[e]);
        for r in self.numbers.replicas(dst) {
            let (from, home) = self.numbers.read_in(src, r);
            let ends = (from, self.numbers.read_in(dst, r).0);
            let bytes = match id {
                i64::MIN..0 => 0,
                _ if self.copies.even[src] => self.even.of(total, home),
                _ if self.copies.along[e] => self.by_rows.of(total, home),
                _ => total,
            };
            found.push(ends, if id < 0 { -1 } else { id + home as i64 * stride }, bytes);
        }
    }
}

/// Columns of edges as they grow.
struct Edges {
    src: Vec<i64>,
    dst: Vec<i64>,
    tensor: Vec<i64>,
    bytes: Vec<u64>,
}

impl Edges {
    fn with_capacity(m: usize) -> Self {
        let column = || Vec::with_capacity(m);
        Self { src: column(), dst: column(), tensor: column(), bytes: Vec::with_capacity(m) }
    }

    #[inline(always)]
    fn push(&mut self, (src, dst): (u32, u32), tensor: i64, bytes: u64) {
        self.src.push(i64::from(src));
        self.dst.push(i64::from(dst));
        self.tensor.push(tensor);
        self.bytes.push(bytes);
    }
}

/// Numbers tensors from 0 without gaps, in the order of their ids. O(edges + largest id).
fn close_gaps(tensor: &mut [i64]) {
    let mut number = vec![0u32; tensor.iter().max().map_or(0, |&last| (last + 1) as usize)];
    tensor.iter().filter(|&&id| id >= 0).for_each(|&id| number[id as usize] = 1);
    let mut count = 0;
    for used in &mut number {
        count += std::mem::replace(used, count);
    }
    for id in tensor.iter_mut().filter(|id| **id >= 0) {
        *id = i64::from(number[*id as usize]);
    }
}
