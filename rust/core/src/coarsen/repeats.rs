//! Groups of ops that play the same part wherever a graph repeats itself: in every layer, in every step.
//!
//! Color refinement (Weisfeiler and Leman 1968) finds the parts: ops that take the same time begin
//! with one color, and every round tells apart those whose inputs or readers differ in color or in
//! what is sent. After a few rounds, ops of one color are alike as far as those rounds see. Then
//! colors join, up to a limit. Pairs that exchange most for the time that they take go first.
//!
//! These groups cannot be placed as coarse ops: they are not connected, and their quotient has cycles. They
//! are for moving ops together ([`crate::search::refine`]): a move that may help one layer is tried in all
//! layers at once.

use super::Weights;
use crate::clock::Ticks;
use crate::error::Error;
use crate::graph::Graph;
use crate::random::mixed;

/// What tells inputs from readers.
const INPUT: u64 = 0x1;
const READER: u64 = 0x2;

/// The color of each op after some rounds, numbered by first op: fewer rounds where more would tell no ops
/// apart. O(rounds (V + E) + V log V log rounds).
///
/// # Errors
/// A column of `weights` that does not have one value per op or tensor.
pub fn colors(graph: &Graph, weights: &Weights<'_>, rounds: usize) -> Result<Vec<u32>, Error> {
    weights.check(graph)?;
    let (op_time, class) = (weights.op_time, weights.class);
    let mut color: Vec<u64> = op_time.iter().zip(class).map(|(t, c)| mixed(mixed(*t) ^ c)).collect();
    let mut known = numbered(&color);
    for round in 1..=rounds {
        // Sums do not depend on the order of what is around an op.
        let seen = |op: u64, tensor: usize, side| mixed(op ^ mixed(weights.tensor_time[tensor] ^ side << 62));
        color = graph
            .ops()
            .map(|u| {
                let inputs = graph.inputs_with_ops(u);
                let inputs = inputs.map(|(t, source)| seen(color[source.ix()], t.ix(), INPUT));
                let readers = graph.outputs(u).flat_map(|t| graph.consumers(t).iter().map(move |v| (t, v)));
                let readers = readers.map(|(t, v)| seen(color[v.ix()], t.ix(), READER));
                let around = inputs.chain(readers).fold(0, u64::wrapping_add);
                mixed(mixed(color[u.ix()]).wrapping_add(around))
            })
            .collect();
        // A round only ever splits colors: where several have split none, no further one will.
        if round.is_power_of_two() {
            let found = numbered(&color);
            if found == known {
                return Ok(found);
            }
            known = found;
        }
    }
    Ok(numbered(&color))
}

/// The same colors, numbered from 0 by first op.
fn numbered(color: &[u64]) -> Vec<u32> {
    let mut ops: Vec<usize> = (0..color.len()).collect();
    ops.sort_unstable_by_key(|&u| (color[u], u));
    let mut first = vec![0; color.len()];
    for alike in ops.chunk_by(|a, b| color[*a] == color[*b]) {
        alike.iter().for_each(|&u| first[u] = alike[0]);
    }
    let mut number = vec![0; color.len()];
    let mut n = 0;
    for u in 0..color.len() {
        number[u] = number[first[u]];
        if first[u] == u {
            number[u] = n;
            n += 1;
        }
    }
    number
}

/// Joins colors by what they exchange, as long as a group takes `max_time` at most. A color that
/// takes longer is a group of its own. O(E log E).
pub fn joined(graph: &Graph, weights: &Weights<'_>, color: &[u32], max_time: Ticks) -> Vec<u32> {
    let n_colors = color.iter().max().map_or(0, |&last| last as usize + 1);
    let mut time = vec![0; n_colors];
    color.iter().zip(weights.op_time).for_each(|(&c, &t)| time[c as usize] += t);
    let mut parent: Vec<u32> = (0..n_colors as u32).collect();
    for (_, a, b) in exchanged(graph, weights, color, &time) {
        let (a, b) = (root(&mut parent, a), root(&mut parent, b));
        let both = time[a as usize] + time[b as usize];
        if a != b && both <= max_time {
            parent[b as usize] = a;
            time[a as usize] = both;
        }
    }
    color.iter().map(|&c| root(&mut parent, c)).collect()
}

/// Pairs of colors that exchange tensors, and the ratio of their transfer time to the compute time
/// of the shorter color; largest ratio first.
fn exchanged(graph: &Graph, weights: &Weights<'_>, color: &[u32], time: &[Ticks]) -> Vec<(f64, u32, u32)> {
    let mut sent = Vec::with_capacity(graph.n_edges());
    for t in graph.tensors() {
        let a = color[graph.source(t).ix()];
        for v in graph.consumers(t) {
            let b = color[v.ix()];
            if a != b {
                sent.push((a.min(b), a.max(b), weights.tensor_time[t.ix()]));
            }
        }
    }
    sent.sort_unstable();
    let same_pair = |x: &(u32, u32, Ticks), y: &(u32, u32, Ticks)| (x.0, x.1) == (y.0, y.1);
    let mut pairs: Vec<_> = sent
        .chunk_by(same_pair)
        .map(|some| {
            let (a, b, _) = some[0];
            let seconds: u128 = some.iter().map(|(_, _, t)| u128::from(*t)).sum();
            let shorter = time[a as usize].min(time[b as usize]).max(1);
            (seconds as f64 / shorter as f64, a, b)
        })
        .collect();
    pairs.sort_unstable_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2).cmp(&(y.1, y.2))));
    pairs
}

/// The color that stands for a color's group. Halves the path to it.
fn root(parent: &mut [u32], mut color: u32) -> u32 {
    while parent[color as usize] != color {
        parent[color as usize] = parent[parent[color as usize] as usize];
        color = parent[color as usize];
    }
    color
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers of a - b - c, one after the other; b sends to c what takes long.
    fn layers() -> Graph {
        let src = [0, 1, 2, 3, 4];
        Graph::new(6, &src, &src.map(|u| u + 1), None).unwrap()
    }

    const OP_TIME: [Ticks; 6] = [1, 2, 3, 1, 2, 3];
    const TENSOR_TIME: [Ticks; 5] = [1, 9, 1, 1, 9];

    fn weights<'a>() -> Weights<'a> {
        Weights { op_time: &OP_TIME, tensor_time: &TENSOR_TIME, op_bytes: &[0; 6], class: &[1; 6] }
    }

    #[test]
    fn layers_share_colors_until_rounds_reach_the_ends() {
        let graph = layers();
        assert_eq!(colors(&graph, &weights(), 0).unwrap(), [0, 1, 2, 0, 1, 2]);
        // The first op reads nothing, and nothing reads the last.
        assert_eq!(colors(&graph, &weights(), 1).unwrap(), [0, 1, 2, 3, 1, 4]);
        assert_eq!(colors(&graph, &weights(), 3).unwrap(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn rounds_that_split_no_color_are_left_out() {
        let graph = layers();
        let all = colors(&graph, &weights(), usize::MAX).unwrap();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        let pair = Graph::new(4, &[0, 2], &[1, 3], None).unwrap();
        let even = Weights { op_time: &[1; 4], tensor_time: &[1; 2], op_bytes: &[0; 4], class: &[1; 4] };
        assert_eq!(colors(&pair, &even, usize::MAX).unwrap(), [0, 1, 0, 1]);
    }

    #[test]
    fn what_is_sent_or_allowed_tells_ops_apart() {
        let graph = layers();
        let class = &[1, 1, 1, 3, 1, 1];
        assert_eq!(colors(&graph, &Weights { class, ..weights() }, 0).unwrap(), [0, 1, 2, 3, 1, 2]);
        let tensor_time = &[1, 9, 1, 1, 8];
        let found = colors(&graph, &Weights { tensor_time, ..weights() }, 1).unwrap();
        assert_ne!(found[1], found[4]);
    }

    #[test]
    fn colors_that_exchange_most_join_within_the_limit() {
        let graph = layers();
        let color = [0, 1, 2, 0, 1, 2];
        assert_eq!(joined(&graph, &weights(), &color, 5), color);
        assert_eq!(joined(&graph, &weights(), &color, 10), [0, 1, 1, 0, 1, 1]);
        assert_eq!(joined(&graph, &weights(), &color, 12), [0; 6]);
    }

    #[test]
    fn columns_must_fit() {
        let none = Weights { op_time: &[], tensor_time: &[], op_bytes: &[], class: &[] };
        assert!(colors(&layers(), &none, 0).is_err());
    }
}
