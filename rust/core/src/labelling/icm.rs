//! Iterated conditional modes (Besag 1986): each node in turn takes the label that is best with all others as
//! they are, until no node changes.
//!
//! O(E L) a pass; nodes whose neighbours have not changed since their last turn are left out. A change lowers
//! the number of forbidden choices, or keeps it and lowers the cost.

use super::model::{Model, first_least};

/// Passes, at most: a change lowers the energy, but rounding may hide by how little.
const PASSES: usize = 100;

/// Improves labels where they stand. Among equals a node keeps its label, else takes the smallest.
pub fn descend(model: &Model, labels: &mut [u32]) {
    let mut is_due = vec![true; model.n_nodes()];
    let mut costs = Vec::with_capacity(model.most_labels());
    for _ in 0..PASSES {
        let mut changed = false;
        for node in 0..model.n_nodes() {
            if !std::mem::take(&mut is_due[node]) {
                continue;
            }
            let label = best(model, node, labels, &mut costs);
            if label != labels[node] {
                labels[node] = label;
                changed = true;
                model.sides(node).for_each(|side| is_due[side.other as usize] = true);
            }
        }
        if !changed {
            return;
        }
    }
}

/// The best label of a node with all others as they are.
fn best(model: &Model, node: usize, labels: &[u32], costs: &mut Vec<f64>) -> u32 {
    model.local(node, labels, costs);
    let (old, new) = (labels[node] as usize, first_least(costs));
    if costs[new] == f64::INFINITY {
        return model.least_forbidden(model.sides(node), node, labels[node], labels);
    }
    if costs[new] < costs[old] { new as u32 } else { old as u32 }
}
