//! A block of ops in the place of one op. What it touches is given; the rest of the graph moves.

use crate::error::Error;
use crate::opgraph::{OpColumns, OpGraph};

/// The ops that replace an op, and its edges. Ops are numbered as in the new graph, edges as in the
/// source.
#[derive(Clone, Debug)]
pub struct Block {
    /// The op that is replaced; the block's first op.
    pub at: usize,
    /// Per op of the block.
    pub flops: Vec<u64>,
    /// Per op of the block, as the next two.
    pub accessed: Vec<u64>,
    /// See `accessed`.
    pub output_bytes: Vec<u64>,
    /// See `accessed`.
    pub workspace: Vec<u64>,
    /// Edges of the source that are left out: all that enter the op.
    pub dropped: Vec<u32>,
    /// Edges of the source that leave the op.
    pub leaving: Vec<u32>,
    /// The op of the block that each of those leaves now.
    pub leaving_src: Vec<u32>,
    /// Edges that are added at the end.
    pub src: Vec<i64>,
    /// See `src`.
    pub dst: Vec<i64>,
    /// See `src`; ids past those of the source are free.
    pub tensor: Vec<i64>,
    /// See `src`.
    pub bytes: Vec<u64>,
    /// Ops of the source whose storage the op owned.
    pub shows: Vec<u32>,
    /// The op of the block that owns the storage of each of those now.
    pub shown: Vec<u32>,
}

impl Block {
    /// Number of ops.
    fn len(&self) -> usize {
        self.flops.len()
    }

    /// A column with the block's values in the place of the op's.
    fn spliced<T: Copy>(&self, column: &[T], block: impl Iterator<Item = T>) -> Vec<T> {
        let mut made = Vec::with_capacity(column.len() + self.len());
        made.extend_from_slice(&column[..self.at]);
        made.extend(block);
        made.extend_from_slice(&column[self.at + 1..]);
        made
    }

    /// The same where the ops of the block all have one value.
    fn filled<T: Copy>(&self, column: &[T], value: T) -> Vec<T> {
        self.spliced(column, std::iter::repeat_n(value, self.len()))
    }

    /// The new number of an op.
    fn moved(&self, op: i64) -> i64 {
        if op > self.at as i64 { op + self.len() as i64 - 1 } else { op }
    }
}

/// The graph with the block in the place of the op. O(V + E), in copies of whole columns.
///
/// # Errors
/// A cycle; more ops or edges than a graph may have.
pub fn replace(source: &OpGraph, block: &Block) -> Result<OpGraph, Error> {
    let c = source.columns();
    let moved = |column: &[i64]| -> Vec<i64> { column.iter().map(|&op| block.moved(op)).collect() };
    let given = |column: &[u64], values: &[u64]| block.spliced(column, values.iter().copied());
    let mut alias_of = moved(&c.alias_of);
    for (&op, &owner) in block.shows.iter().zip(&block.shown) {
        alias_of[op as usize] = i64::from(owner);
    }
    let is_any = !c.collective.is_empty();
    let (src, dst, tensor, bytes) = edges(c, block);
    OpGraph::made(OpColumns {
        name: Vec::new(),
        src,
        dst,
        tensor: Some(tensor),
        bytes,
        view: block.filled(&c.view, false),
        placeholder: block.filled(&c.placeholder, false),
        alias_of: block.filled(&alias_of, -1),
        near: block.filled(&moved(&c.near), -1),
        colocation: block.filled(&c.colocation, -1),
        flops: given(&c.flops, &block.flops),
        accessed: given(&c.accessed, &block.accessed),
        output_bytes: given(&c.output_bytes, &block.output_bytes),
        resident: block.filled(&c.resident, 0),
        workspace: given(&c.workspace, &block.workspace),
        collective: if is_any { block.filled(&c.collective, -1) } else { Vec::new() },
        collective_kind: if is_any { block.filled(&c.collective_kind, 0) } else { Vec::new() },
        runs: c.runs.get(block.at).map_or_else(Vec::new, |&runs| given(&c.runs, &vec![runs; block.len()])),
    })
}

/// Source, destination, tensor and bytes of each edge. Those out of the op keep their place: an op
/// tells its arguments apart by that order.
fn edges(c: &OpColumns, block: &Block) -> (Vec<i64>, Vec<i64>, Vec<i64>, Vec<u64>) {
    let mut stays = vec![true; c.src.len()];
    block.dropped.iter().for_each(|&e| stays[e as usize] = false);
    let mut src: Vec<i64> = c.src.iter().map(|&op| block.moved(op)).collect();
    for (&e, &from) in block.leaving.iter().zip(&block.leaving_src) {
        src[e as usize] = i64::from(from);
    }
    let dst: Vec<i64> = c.dst.iter().map(|&op| block.moved(op)).collect();
    let ids = c.tensor.as_deref().unwrap_or(&c.src);
    (
        kept(&src, &stays, &block.src),
        kept(&dst, &stays, &block.dst),
        kept(ids, &stays, &block.tensor),
        kept(&c.bytes, &stays, &block.bytes),
    )
}

/// The values of edges that stay, then those of new ones.
fn kept<T: Copy>(column: &[T], stays: &[bool], new: &[T]) -> Vec<T> {
    let mut made = Vec::with_capacity(column.len() + new.len());
    made.extend(column.iter().zip(stays).filter(|(_, stays)| **stays).map(|(value, _)| *value));
    made.extend_from_slice(new);
    made
}
