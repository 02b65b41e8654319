//! Union-find: which items have been joined.
//!
//! With path halving and no ranks: O(log n) amortised a call. The representative of a set is its
//! smallest member, so that numbers do not depend on the order in which items were joined.

use crate::csr::Csr;
use crate::ids::OpId;

/// Union-find whose representative is the smallest member.
#[derive(Clone, Debug)]
pub struct Union {
    parent: Vec<u32>,
}

impl Union {
    /// Every item alone.
    pub fn new(n: usize) -> Self {
        Self { parent: (0..n as u32).collect() }
    }

    /// The smallest item joined with `i`.
    pub fn find(&mut self, mut i: usize) -> usize {
        while self.parent[i] as usize != i {
            let grand = self.parent[self.parent[i] as usize];
            self.parent[i] = grand;
            i = grand as usize;
        }
        i
    }

    /// Joins two items.
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b)] = a.min(b) as u32;
    }

    /// Sets of the first `n` items, numbered by smallest member, members ascending.
    pub fn sets(&mut self, n: usize) -> (Vec<u32>, Csr<OpId>) {
        let mut set_of = vec![0u32; n];
        let mut count = 0;
        for i in 0..n {
            let root = self.find(i);
            if root == i {
                set_of[i] = count;
                count += 1;
            } else {
                set_of[i] = set_of[root];
            }
        }
        // No two are joined: there is nothing to sort.
        if count as usize == n {
            return (set_of, Csr::from_parts((0..=count).collect(), (0..count).map(OpId).collect()));
        }
        let members = set_of.iter().enumerate().map(|(i, &s)| (s as usize, OpId::new(i)));
        let sets = Csr::from_pairs(count as usize, members);
        (set_of, sets)
    }
}
