//! Copies of ops on several devices, and ops that are added between them. O(k (V + E)) for k devices.
//!
//! Ops keep their order, and the copies of an op are neighbours. An op that is added stands right
//! before or right after the copies of an op. Edges keep the order of the source's, by which an op
//! tells its arguments apart: the copies of an edge come first, then the links at its place.

use crate::csr::Csr;
use crate::error::Error;
use crate::expand::ways::Way;
use crate::graph::MAX_ITEMS;
use crate::opgraph::{OpColumns, OpGraph};

/// Which devices have a copy of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// Per device, the device whose copy its ops read.
    at: Vec<u32>,
    /// The devices that have one.
    devices: Vec<u32>,
    /// Per device, which of the copies its ops read.
    slot: Vec<u32>,
    /// Whether the copy is on no device.
    is_common: bool,
}

impl Home {
    /// From the device whose copy the ops of each device read. A device that reads its own has one.
    ///
    /// # Panics
    /// A device that has none is read from.
    pub fn new(at: Vec<u32>) -> Self {
        let devices: Vec<u32> = (0..at.len() as u32).filter(|&d| at[d as usize] == d).collect();
        let slot = |d: &u32| devices.binary_search(d).expect("has a copy") as u32;
        Self { slot: at.iter().map(slot).collect(), at, devices, is_common: false }
    }

    /// There is one copy, which is on no device.
    pub fn common(k: usize) -> Self {
        Self { is_common: true, ..Self::new(vec![0; k]) }
    }

    /// The devices that have a copy; one that is on no device counts as on device 0.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Whether there is one copy, on no device.
    pub fn is_common(&self) -> bool {
        self.is_common
    }
}

/// Amounts that are sums of differently shared ones.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Where those of each op begin, and one past the last of all.
    pub first: Vec<u32>,
    /// How each is shared: an index into [`Copies::ways`].
    pub way: Vec<u32>,
    /// What is shared.
    pub bytes: Vec<u64>,
}

/// What becomes of the ops and edges of a graph.
#[derive(Clone, Debug)]
pub struct Copies {
    /// Number of devices.
    pub k: usize,
    /// The ways in which something is shared.
    pub ways: Vec<Way>,
    /// The sets of devices on which ops are.
    pub homes: Vec<Home>,
    /// Per op, which of `homes` it has.
    pub home: Vec<u32>,
    /// Per op, how its FLOPs and its workspace are shared.
    pub work: Vec<u32>,
    /// Per op, how the bytes are shared that stay for the whole step.
    pub resident: Vec<u32>,
    /// What the copies of each op access.
    pub accessed: Terms,
    /// What the copies of each op output.
    pub output: Terms,
    /// Per edge, whether it is copied. Else links stand for it.
    pub stays: Vec<bool>,
    /// Per edge, how its bytes are shared.
    pub edge: Vec<u32>,
    /// Per op, the one colocation set of its copies on all devices; -1: each device has its own of the sets
    /// of the source.
    pub together: Vec<i64>,
}

impl Copies {
    /// What a device has of the terms of an op.
    fn of_terms(&self, terms: &Terms, op: usize, device: usize) -> u64 {
        let of = terms.first[op] as usize..terms.first[op + 1] as usize;
        of.map(|t| self.ways[terms.way[t] as usize].of(terms.bytes[t], device)).sum()
    }

    /// The colocation set of the copy of an op on a device, of those of the source; -1: none.
    fn set_of(&self, sets: &[i64], op: usize, device: usize) -> i64 {
        let of_device = |set: i64| if set < 0 { -1 } else { set * self.k as i64 + device as i64 };
        match self.together[op] {
            -1 => of_device(sets[op]),
            set => set * self.k as i64,
        }
    }
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
    /// The device that it is on, -1: none.
    pub device: Vec<i32>,
    /// The collective that it is a member of, -1: none, and that collective's kind.
    pub collective: Vec<i64>,
    /// See `collective`.
    pub kind: Vec<u8>,
    /// How often it runs. Empty: once.
    pub runs: Vec<u64>,
    /// What it computes, accesses and makes.
    pub flops: Vec<u64>,
    /// See `flops`.
    pub accessed: Vec<u64>,
    /// See `flops`.
    pub output: Vec<u64>,
    /// The op whose storage each changes in place, as an end of [`Links`]; -1: none. Empty: none does.
    pub alias: Vec<i64>,
}

/// Edges that are no copies. An end is `op * k + device` for the copy of an op that ops of a device read,
/// and `n_ops * k + i` for the added op `i`.
#[derive(Clone, Debug)]
pub struct Links {
    /// The edge of the source that each stands for; the number of edges: none. Ascending.
    pub place: Vec<u32>,
    /// Producer.
    pub src: Vec<u64>,
    /// Consumer.
    pub dst: Vec<u64>,
    /// Tensor id: on device `d`, the source's id plus `d` times one more than the largest of them. -1:
    /// no data. Ids from `k` times that on are free.
    pub tensor: Vec<i64>,
    /// Bytes of the tensor.
    pub bytes: Vec<u64>,
}

/// A graph of copies, and what each of its ops is.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// The graph.
    pub graph: OpGraph,
    /// The op of the source that each op is a copy of or serves.
    pub serves: Vec<i32>,
    /// The device that each op is on, -1: none.
    pub device: Vec<i32>,
    /// Which of the added ops each op is, -1: a copy.
    pub added: Vec<i32>,
}

/// Where the new ops are.
struct Numbers<'a> {
    copies: &'a Copies,
    /// The first copy of each op.
    first: Vec<u32>,
    /// Each added op.
    added: Vec<u32>,
}

impl<'a> Numbers<'a> {
    fn home(&self, op: usize) -> &'a Home {
        &self.copies.homes[self.copies.home[op] as usize]
    }

    /// The copy of an op that an op of a device reads, and that copy's device.
    #[inline(always)]
    fn read_on(&self, op: usize, device: usize) -> (u32, usize) {
        let home = self.home(op);
        (self.first[op] + home.slot[device], home.at[device] as usize)
    }

    /// The copy of an op that is on a device or on none.
    fn copy_on(&self, op: usize, device: usize) -> Option<u32> {
        let (copy, at) = self.read_on(op, device);
        (at == device || self.home(op).is_common).then_some(copy)
    }

    /// The op at an end of a link.
    fn end(&self, end: u64) -> u32 {
        let k = self.copies.k;
        let (op, device) = (end as usize / k, end as usize % k);
        match self.first.get(op) {
            Some(_) => self.read_on(op, device).0,
            None => self.added[end as usize - self.first.len() * k],
        }
    }
}

/// The graph of copies.
///
/// # Errors
/// A cycle; more ops or edges than a graph may have, if each device had all of them.
pub fn expand(source: &OpGraph, copies: &Copies, added: &Added, links: &Links) -> Result<Expanded, Error> {
    let k = copies.k;
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
    numbers: Numbers<'a>,
    /// Added ops by the op that they stand before (even rows) or after (odd rows).
    beside: Csr<u32>,
    columns: OpColumns,
    serves: Vec<i32>,
    device: Vec<i32>,
    which: Vec<i32>,
}

impl<'a> Making<'a> {
    fn new(source: &'a OpGraph, copies: &'a Copies, added: &'a Added) -> Self {
        let (n, k) = (source.n_ops(), copies.k);
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
            numbers: Numbers { copies, first: Vec::with_capacity(n), added: vec![0; added.place.len()] },
            beside,
            columns,
            serves: Vec::with_capacity(ops),
            device: Vec::with_capacity(ops),
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
            self.device.push(added.device[at]);
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
        let home = self.numbers.home(op);
        let (work, resident) =
            (&copies.ways[copies.work[op] as usize], &copies.ways[copies.resident[op] as usize]);
        for &device in &home.devices {
            let d = device as usize;
            self.serves.push(op as i32);
            self.device.push(if home.is_common { -1 } else { device as i32 });
            self.which.push(-1);
            let c = &mut self.columns;
            c.flops.push(work.of(source.flops[op], d));
            c.accessed.push(copies.of_terms(&copies.accessed, op, d));
            c.output_bytes.push(copies.of_terms(&copies.output, op, d));
            c.resident.push(resident.of(source.resident[op], d));
            c.workspace.push(work.of(source.workspace[op], d));
        }
    }

    fn finish(mut self, links: &Links) -> Result<Expanded, Error> {
        self.join_ops();
        self.join_edges(links);
        let Self { columns, serves, device, which, .. } = self;
        Ok(Expanded { graph: OpGraph::made(columns)?, serves, device, added: which })
    }

    /// The columns that name other ops, and those of sets and kinds.
    fn join_ops(&mut self) {
        let (source, added, numbers) = (self.source, self.added, &self.numbers);
        let c = &mut self.columns;
        let groups = |column: &[i64]| column.iter().max().map_or(0, |&last| last + 1);
        let copied = groups(&source.collective) * self.copies.k as i64;
        let is_any = copied + groups(&added.collective) > 0;
        let is_repeated = !(source.runs.is_empty() && added.runs.is_empty());
        for (i, (&serves, &device)) in self.serves.iter().zip(&self.device).enumerate() {
            let (op, d) = (serves as usize, device.max(0) as usize);
            let which = usize::try_from(self.which[i]).ok();
            let is_copy = which.is_none();
            let named = |column: &[i64]| usize::try_from(column[op]).ok().filter(|_| is_copy);
            let alias = match which {
                None => named(&source.alias_of).and_then(|of| numbers.copy_on(of, d)),
                Some(at) => added.alias.get(at).filter(|&&end| end >= 0).map(|&end| numbers.end(end as u64)),
            };
            c.alias_of.push(alias.map_or(-1, i64::from));
            c.near.push(named(&source.near).map_or(-1, |near| i64::from(numbers.first[near])));
            c.colocation.push(if is_copy { self.copies.set_of(&source.colocation, op, d) } else { -1 });
            c.view.push(is_copy && source.view[op]);
            c.placeholder.push(is_copy && source.placeholder[op]);
            if is_repeated {
                let runs = which.map_or_else(|| source.runs.get(op), |at| added.runs.get(at));
                c.runs.push(runs.copied().unwrap_or(1));
            }
            if is_any {
                let of_copy = source.collective.get(op).map_or(-1, |&group| group);
                let group = match which {
                    None if of_copy >= 0 => of_copy * self.copies.k as i64 + d as i64,
                    None => -1,
                    Some(at) if added.collective[at] >= 0 => copied + added.collective[at],
                    Some(_) => -1,
                };
                let kind = source.collective_kind.get(op).map_or(0, |&kind| kind);
                c.collective.push(group);
                c.collective_kind.push(which.map_or(kind, |at| added.kind[at]));
            }
        }
    }

    /// Copies of edges, and links, with tensors numbered without gaps.
    fn join_edges(&mut self, links: &Links) {
        let m = self.source.src.len();
        let ids = self.source.tensor.as_deref().unwrap_or(&self.source.src);
        let stride = ids.iter().max().map_or(0, |&last| last + 1);
        let mut found = Edges::with_capacity(m * self.copies.k + links.place.len());
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
        let way = &self.copies.ways[self.copies.edge[e] as usize];
        for &device in &self.numbers.home(dst).devices {
            let device = device as usize;
            let (from, at) = self.numbers.read_on(src, device);
            let ends = (from, self.numbers.read_on(dst, device).0);
            let (tensor, bytes) = if id < 0 { (-1, 0) } else { (id + at as i64 * stride, way.of(total, at)) };
            found.push(ends, tensor, bytes);
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
