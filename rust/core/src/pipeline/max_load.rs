//! Stages with the smallest largest load.
//!
//! Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
//! Placement of DNN Graph Operators" (NeurIPS 2020). Their dynamic program goes over all downsets,
//! and takes minutes where there are 20,000. Here linear orders and moves of groups find a good
//! period first. The program then only looks for a better one, which rules out most pairs of downsets.
//! Where the downsets are too many to be listed, what was found first is the answer.

use super::downsets::Downsets;
use super::line::Line;
use super::moves::improved;
use super::walk::{Cuts, Walk, best_walk};
use super::{Devices, Groups, Stage, check_orders, loads};
use crate::error::Error;

/// How many parts of the whole an order is cut into, to find a good period quickly.
const PARTS: usize = 200;

/// The stages of a chain of cuts.
fn stages(walk: &Walk, between: impl Fn(usize, usize) -> Vec<u32>) -> Vec<Stage> {
    let mut cut = 0;
    let mut stage = |&(end, on_cpu): &(usize, bool)| {
        let groups = between(cut, end);
        cut = end;
        Stage { groups, on_cpu }
    };
    walk.stages.iter().map(&mut stage).collect()
}

fn period(groups: &Groups, stages: &[Stage]) -> f64 {
    loads(groups, stages).into_iter().fold(0.0, f64::max)
}

/// The best contiguous stages of some topological orders, with groups moved between them; nothing
/// where no order has stages that fit.
fn of_orders(groups: &Groups, devices: Devices, orders: &[&[u32]]) -> Option<Vec<Stage>> {
    let mut best: Option<(f64, Vec<Stage>)> = None;
    for thin in [true, false] {
        for order in orders {
            let line = Line::new(groups, order);
            let mut line = if thin { line.thinned(PARTS) } else { line };
            let known = best.as_ref().map_or(f64::INFINITY, |b| b.0);
            if let Some(walk) = best_walk(&mut line, groups, devices, known) {
                let found = stages(&walk, |a, b| {
                    let mut part = order[line.position(a)..line.position(b)].to_vec();
                    part.sort_unstable();
                    part
                });
                best = Some((period(groups, &found), found));
            }
        }
    }
    best.map(|(_, found)| improved(groups, devices, &found))
}

/// The most entries of the dynamic program's table: cuts of an order by numbers of devices used.
const MOST_ENTRIES: usize = 1 << 26;

fn check(groups: &Groups, devices: Devices, orders: &[&[u32]]) -> Result<(), Error> {
    check_orders(groups, orders)?;
    let entries = (groups.len() + 1)
        .saturating_mul(devices.accelerators.saturating_add(1))
        .saturating_mul(devices.cpus.saturating_add(1));
    if entries > MOST_ENTRIES {
        let what = "groups x accelerators x CPU cores";
        return Err(Error::TooMany { what, count: entries, limit: MOST_ENTRIES });
    }
    Ok(())
}

/// Stages, nothing where none were found; and how many downsets there are, nothing where they were
/// too many to be listed. Where they were listed, no other stages have a smaller largest load, or
/// none fit at all.
pub type Split = (Option<Vec<Stage>>, Option<usize>);

/// The stages with the smallest largest load. `orders` are topological orders of the groups: where
/// downsets are too many, the stages are at least as good as the best contiguous ones of each.
///
/// # Errors
/// No groups; an order that is none; more groups and devices than the table has room for.
pub fn split(groups: &Groups, devices: Devices, orders: &[&[u32]]) -> Result<Split, Error> {
    let few = |count: usize| count.min(groups.len());
    let devices = Devices { accelerators: few(devices.accelerators), cpus: few(devices.cpus), ..devices };
    check(groups, devices, orders)?;
    let first = of_orders(groups, devices, orders);
    let Some(mut downsets) = Downsets::list(groups, orders[0]) else { return Ok((first, None)) };
    let known = first.as_ref().map_or(f64::INFINITY, |found| period(groups, found));
    let better = best_walk(&mut downsets, groups, devices, known)
        .map(|walk| stages(&walk, |a, b| downsets.between(a, b)));
    Ok((better.or(first), Some(downsets.sums().len())))
}
