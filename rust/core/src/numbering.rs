//! Two ways to number ops: as the user does, and as they run.
//!
//! A sweep over a graph visits ops that run near each other one after another, and is fast if these
//! lie close together in memory. [`Graph::numbered`](crate::graph::Graph::numbered) therefore makes
//! an op's id its position in a topological order. A [`Numbering`] is the map back. **Ties between
//! ops break by [`Numbering::index`], the user's, never by [`OpId`]**: so results do not depend on
//! which numbering a graph has. Where the two numberings agree, nothing is stored.

use crate::csr::Csr;
use crate::ids::OpId;

/// The user's index of every op and the op of every index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbering {
    /// The user's index per op; empty where ops are numbered as the user numbers them.
    indices: Vec<u32>,
    /// The op of each of the user's indices, as long as `indices`.
    ops: Vec<OpId>,
}

impl Numbering {
    /// Numbers ops by their place in `order`, a list of the user's indices.
    pub fn by(order: &[OpId]) -> Self {
        let mut ops = vec![OpId::NONE; order.len()];
        order.iter().enumerate().for_each(|(op, index)| ops[index.ix()] = OpId::new(op));
        Self { indices: order.iter().map(|index| index.0).collect(), ops }
    }

    /// The user's index of an op.
    #[inline(always)]
    pub fn index(&self, op: OpId) -> u32 {
        if self.indices.is_empty() { op.0 } else { self.indices[op.ix()] }
    }

    /// The op of a user's index.
    #[inline(always)]
    pub fn op(&self, index: u32) -> OpId {
        if self.ops.is_empty() { OpId(index) } else { self.ops[index as usize] }
    }

    /// Brings a column of `width` values per op from the user's indices into the order of ops.
    #[must_use]
    pub fn by_op<T: Copy>(&self, column: Vec<T>, width: usize) -> Vec<T> {
        moved(&self.indices, |index| *index as usize, column, width)
    }

    /// Sets of ops, given by the user's indices: the set of each op, and the members of each set, which
    /// stay in the order of their indices.
    #[must_use]
    pub fn sets(&self, set_of: Vec<u32>, mut sets: Csr<OpId>) -> (Vec<u32>, Csr<OpId>) {
        sets.items_mut().iter_mut().for_each(|member| *member = self.op(member.0));
        (self.by_op(set_of, 1), sets)
    }

    /// Every one of `n` ops in a set of its own, as [`Numbering::sets`] has them.
    #[must_use]
    pub fn sets_of_one(&self, n: usize) -> (Vec<u32>, Csr<OpId>) {
        let numbers = || 0..n as u32;
        let sets = Csr::from_parts((0..=n as u32).collect(), numbers().map(|index| self.op(index)).collect());
        (numbers().map(|op| self.index(OpId(op))).collect(), sets)
    }

    /// Brings a column of one value per op into the order of the user's indices.
    #[must_use]
    pub fn by_index<T: Copy>(&self, column: Vec<T>) -> Vec<T> {
        self.rows_by_index(column, 1)
    }

    /// Brings a column of `width` values per op into the order of the user's indices.
    #[must_use]
    pub fn rows_by_index<T: Copy>(&self, column: Vec<T>, width: usize) -> Vec<T> {
        moved(&self.ops, |op| op.ix(), column, width)
    }
}

/// Rows of `width` values, moved: `from` says where each row comes from. If it is empty, no row
/// moves.
fn moved<S, T: Copy>(from: &[S], at: impl Fn(&S) -> usize, column: Vec<T>, width: usize) -> Vec<T> {
    match (from, width) {
        ([], _) => column,
        (_, 1) => from.iter().map(|s| column[at(s)]).collect(),
        _ => from.iter().flat_map(|s| &column[at(s) * width..(at(s) + 1) * width]).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_in_and_come_out() {
        let numbering = Numbering::by(&[OpId(2), OpId(0), OpId(1)]);
        let inside = numbering.by_op(vec!['a', 'b', 'c'], 1);
        assert_eq!(inside, ['c', 'a', 'b']);
        assert_eq!(numbering.by_index(inside), ['a', 'b', 'c']);
        assert_eq!(numbering.by_op(vec![1, 1, 2, 2, 3, 3], 2), [3, 3, 1, 1, 2, 2]);
        assert_eq!((numbering.index(OpId(0)), numbering.op(2)), (2, OpId(0)));
    }

    #[test]
    fn sets_of_one_are_those_of_ops_that_are_not_joined() {
        for numbering in [Numbering::by(&[OpId(2), OpId(0), OpId(1)]), Numbering::default()] {
            let (set_of, sets) = crate::union::Union::new(3).sets(3);
            assert_eq!(numbering.sets_of_one(3), numbering.sets(set_of, sets));
        }
    }

    #[test]
    fn the_users_own_numbering_moves_nothing() {
        let numbering = Numbering::default();
        assert_eq!(numbering.by_op(vec![1, 2], 1), [1, 2]);
        assert_eq!((numbering.index(OpId(7)), numbering.op(7)), (7, OpId(7)));
    }
}
