//! Moves of groups over the borders of stages.

use super::{Devices, Groups, Stage, loads};

/// The most groups of tensors that are looked at: a hub counts again with each of its tensors.
const MOST_STEPS: usize = 1 << 27;

/// Stages while groups move between them.
struct Moving<'a> {
    groups: &'a Groups,
    devices: Devices,
    after: Vec<Vec<u32>>,
    of: Vec<u32>,
    on_cpu: Vec<bool>,
    load: Vec<f64>,
    bytes: Vec<u64>,
    steps: usize,
}

impl Moving<'_> {
    /// Whether a group may be in another stage: the order allows it, and the device.
    fn may(&self, g: usize, to: u32) -> bool {
        let accelerated = || {
            let fits = self.bytes[to as usize] + self.groups.bytes[g] <= self.devices.memory;
            self.groups.accelerator[g].is_some() && fits
        };
        self.groups.before.row(g).iter().all(|&b| self.of[b as usize] <= to)
            && self.after[g].iter().all(|&a| self.of[a as usize] >= to)
            && (self.on_cpu[to as usize] || accelerated())
    }

    /// The loads of a group's stage and of another, were the group in the other. No further stage's
    /// load changes: it pays for a tensor that joins it to anything else.
    fn moved(&mut self, g: usize, to: u32) -> (f64, f64) {
        let from = self.of[g];
        let time = |stage: u32| match self.on_cpu[stage as usize] {
            true => self.groups.cpu[g],
            false => self.groups.accelerator[g].unwrap_or(0.0),
        };
        let mut loads = (self.load[from as usize] - time(from), self.load[to as usize] + time(to));
        for &t in self.groups.tensors.row(g) {
            let (pins, cost) = (self.groups.pins.row(t as usize), self.groups.cost[t as usize]);
            self.steps += pins.len();
            let others = || pins.iter().filter(|&&p| p as usize != g).map(|&p| self.of[p as usize]);
            if pins.len() < 2 {
                continue;
            }
            let (meets_from, meets_to) = (others().any(|s| s == from), others().any(|s| s == to));
            let (only_from, only_to) = (others().all(|s| s == from), others().all(|s| s == to));
            let paid = |before: bool, after: bool| cost * (f64::from(after) - f64::from(before));
            if !self.on_cpu[from as usize] {
                loads.0 += paid(!only_from, meets_from);
            }
            if !self.on_cpu[to as usize] {
                loads.1 += paid(meets_to, !only_to);
            }
        }
        loads
    }

    /// The move out of a stage after which the larger of both loads is least, if that is less than
    /// the stage's load.
    fn best(&mut self, from: u32) -> Option<(usize, u32, (f64, f64))> {
        let mut best = None;
        let mut least = self.load[from as usize];
        for g in 0..self.of.len() {
            if self.of[g] != from {
                continue;
            }
            for to in [from.wrapping_sub(1), from + 1] {
                if (to as usize) < self.load.len() && self.may(g, to) {
                    let loads = self.moved(g, to);
                    if loads.0.max(loads.1) < least {
                        least = loads.0.max(loads.1);
                        best = Some((g, to, loads));
                    }
                }
            }
        }
        best
    }
}

/// Moves groups out of the busiest stage into a neighbour, as long as both then have less than the
/// busiest had. O(moves x groups x tensors of one), cut off at a count of steps.
pub fn improved(groups: &Groups, devices: Devices, stages: &[Stage]) -> Vec<Stage> {
    let mut of = vec![0u32; groups.len()];
    let mut after = vec![Vec::new(); groups.len()];
    for (s, stage) in stages.iter().enumerate() {
        stage.groups.iter().for_each(|&g| of[g as usize] = s as u32);
    }
    for g in 0..groups.len() {
        groups.before.row(g).iter().for_each(|&b| after[b as usize].push(g as u32));
    }
    let bytes = |s: &Stage| s.groups.iter().map(|&g| groups.bytes[g as usize]).sum();
    let mut moving = Moving {
        groups,
        devices,
        after,
        of,
        on_cpu: stages.iter().map(|s| s.on_cpu).collect(),
        load: loads(groups, stages),
        bytes: stages.iter().map(bytes).collect(),
        steps: 0,
    };
    while moving.steps < MOST_STEPS {
        let busiest = (0..moving.load.len()).max_by(|&a, &b| moving.load[a].total_cmp(&moving.load[b]));
        let Some(from) = busiest else { break };
        moving.steps += groups.len();
        let Some((g, to, (left, gained))) = moving.best(from as u32) else { break };
        moving.of[g] = to;
        moving.bytes[from] -= groups.bytes[g];
        moving.bytes[to as usize] += groups.bytes[g];
        (moving.load[from], moving.load[to as usize]) = (left, gained);
    }
    let mut moved: Vec<Stage> =
        stages.iter().map(|s| Stage { groups: Vec::new(), on_cpu: s.on_cpu }).collect();
    moving.of.iter().enumerate().for_each(|(g, &s)| moved[s as usize].groups.push(g as u32));
    moved.retain(|s| !s.groups.is_empty());
    moved
}
