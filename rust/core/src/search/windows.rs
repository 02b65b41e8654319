//! Search in windows: stretches of the order one after another, each as a small problem of its own.
//!
//! On a large graph an accepted move changes the start of nearly all later ops, so that each move costs much.
//! A window is cheap because it takes what surrounds it as given: when devices and channels are free where
//! the window begins, when the tensors made before it arrive, and how long the rest of the order takes from
//! each device's last op in the window and from each tensor that is read after it
//! ([`bottoms`](super::bottoms)). A [`Chain`] places and orders the ops inside, with the recurrence of the
//! whole. What the chain finds is taken over if the makespan of the whole does not get longer. If the chain
//! finds nothing better, its last state is taken over on the same condition: a state of equal makespan can
//! lead out of a local optimum.
//!
//! After many passes without a better state one window is searched at a high temperature, and the result is
//! taken over whatever its makespan. The search goes on from there; the next such window starts from the best
//! state of all (iterated local search: Lourenço, Martin, Stützle 2003).
//!
//! Several windows can be searched at a time, each in its own share of the order, so that no two have an op
//! in common. Their results are taken over one after another: the outcome depends on the number of windows,
//! not on threads.
//!
//! A window is an approximation in two ways, and where a runtime has costs in a third: a tensor that was made
//! before the window and goes to another device now costs its sender nothing. A channel that was idle before the window could have carried a
//! tensor to an op's new device then; a window does not use that time. And ops that move together with an op
//! outside the window stay where they are.

use crate::border::check_room;
use crate::clock::Ticks;
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::{Edge, Graph, HomeTensor};
use crate::ids::{DeviceId, OpId, TensorId};
use crate::random::Random;
use crate::search::anneal::{Chain, Cooling, Found, Stop};
use crate::search::n_threads;
use crate::search::problem::{Problem, Surroundings, ranks, reads};
use crate::search::state::State;
use crate::workload::{Columns, Workload};

/// Ops of a window, about, and moves made in it. Few moves are enough, for the next pass comes back to the
/// same ops.
const OPS: usize = 300;
const MOVES: u64 = 1000;

/// A window is searched as coldly as a large graph.
const COOLING: Cooling = Cooling { portfolio: &[0.001], patience: 16 };

/// Passes over the order without a better state after which one window is searched hot.
const PASSES: usize = 10;
const HOT: Cooling = Cooling { portfolio: &[0.01], patience: 1 };

/// The search in windows of a whole problem.
#[derive(Debug)]
pub struct Windows<'a> {
    state: State<'a>,
    random: Random,
    /// Rows of a window; rows of the share of the order that each window of a round lies in; the row of its
    /// share at which the next window begins.
    size: usize,
    share: usize,
    next: usize,
    /// The most windows of a round.
    count: u64,
    threads: usize,
    /// Visits of ops in windows so far; all visits at the time of the last better state.
    visits: u64,
    found_at: u64,
    /// Windows since the last better state; the best state before [`Self::lead_away`].
    barren: usize,
    left: Option<Found>,
    stop: Stop,
}

impl<'a> Windows<'a> {
    /// Starts from a state that [`Problem::check`] has passed. Searches up to `count` windows at a time on
    /// `threads` threads; `stop` is for each of them.
    ///
    /// # Errors
    /// A problem that there is no room for.
    pub fn new(
        problem: &'a Problem<'a>,
        start: &Found,
        seed: u64,
        count: usize,
        threads: usize,
        stop: Stop,
    ) -> Result<Self, Error> {
        check_room("ops", problem.n_ops(), State::bytes(problem) / problem.n_ops())?;
        let state = State::new(problem, &start.device, &start.order);
        let (size, n_rows) = (OPS.min(problem.n_ops()).div_ceil(state.stride), state.n_rows());
        let count = count.clamp(1, n_rows / size) as u64;
        let of_all = |visits: u64| visits.saturating_mul(count);
        Ok(Self {
            state,
            random: Random::new(seed, 0),
            size,
            share: n_rows.div_ceil(count as usize),
            next: 0,
            count,
            threads: n_threads(threads, count as usize),
            visits: 0,
            found_at: 0,
            barren: 0,
            left: None,
            stop: Stop { visits: of_all(stop.visits), patience: of_all(stop.patience), ..stop },
        })
    }

    /// The best state so far.
    pub fn best(&self) -> Found {
        let state = &self.state;
        match &self.left {
            Some(left) if left.makespan < state.makespan() => left.clone(),
            _ => Found {
                device: state.device().to_vec(),
                order: state.order().to_vec(),
                makespan: state.makespan(),
            },
        }
    }

    /// Its makespan.
    pub fn makespan(&self) -> Ticks {
        let makespan = self.state.makespan();
        self.left.as_ref().map_or(makespan, |left| left.makespan.min(makespan))
    }

    /// Whether it has stopped.
    pub fn is_done(&self) -> bool {
        let visits = self.visits();
        visits >= self.stop.visits
            || visits - self.found_at >= self.stop.patience
            || self.makespan() <= self.stop.target
    }

    /// Visits of ops, and what else takes time counted as visits of ops.
    pub fn visits(&self) -> u64 {
        self.visits + self.state.visits()
    }

    /// Visits of ops by each of the windows that are searched at a time: what `stop` counts.
    pub fn visits_each(&self) -> u64 {
        self.visits() / self.count
    }

    /// Searches the next window of each share. Returns how many. A window overlaps the next one of its share
    /// by half.
    pub fn run(&mut self) -> u64 {
        let n_rows = self.state.n_rows();
        // Windows of a pass begin half a window apart.
        if self.barren >= PASSES * (2 * n_rows / self.size) {
            self.lead_away();
        }
        self.state.renew_bottoms(0);
        let first = self.next;
        self.next = if first + self.size < self.share {
            first + self.size / 2
        } else {
            self.random.below((self.size / 2).max(1))
        };
        let rows = (first..n_rows).step_by(self.share);
        let tasks: Vec<(usize, u64)> = rows.map(|row| (row, self.random.bits())).collect();
        for searched in self.searched(&tasks) {
            self.take_over(&searched, self.state.makespan());
        }
        tasks.len() as u64
    }

    /// Changes one window of the best state whatever that costs, and lets the search go on from there.
    fn lead_away(&mut self) {
        let best = self.best();
        if best.makespan < self.state.makespan() {
            self.state.set(&best.device, &best.order);
        }
        self.left = Some(best);
        self.state.renew_bottoms(0);
        let row = self.random.below(self.state.n_rows() - self.size + 1);
        let searched = Searched::of(&self.state, row, self.size, self.random.bits(), HOT);
        self.take_over(&searched, Ticks::MAX);
        self.barren = 0;
    }

    /// Searches one window per task, from the task's row on with the task's seed.
    fn searched(&self, tasks: &[(usize, u64)]) -> Vec<Searched> {
        let (state, size) = (&self.state, self.size);
        let search = move |tasks: &[(usize, u64)]| -> Vec<Searched> {
            tasks.iter().map(|&(row, seed)| Searched::of(state, row, size, seed, COOLING)).collect()
        };
        if self.threads == 1 || tasks.len() == 1 {
            return search(tasks);
        }
        std::thread::scope(|scope| {
            let parts = tasks.chunks(tasks.len().div_ceil(self.threads));
            let running: Vec<_> = parts.map(|part| scope.spawn(move || search(part))).collect();
            running.into_iter().flat_map(|thread| thread.join().expect("a search does not panic")).collect()
        })
    }

    /// Changes the whole as the search of a window changed the window, if the whole's makespan is then at
    /// most `limit`.
    fn take_over(&mut self, searched: &Searched, limit: Ticks) {
        let Searched { window, found, visits } = searched;
        self.visits += visits;
        self.barren += 1;
        let (problem, k) = (self.state.problem, self.state.problem.n_devices);
        let ops = &found.order[k..found.order.len() - k];
        for (i, &local) in ops.iter().enumerate() {
            let u = window.op(local);
            let (unit, to) = (problem.unit(u), found.device[local.ix()]);
            if self.state.device_of(unit) != to {
                self.state.place(unit, to);
            }
            let position = window.first + i;
            if self.state.order()[position] != u {
                self.state.shift(u, position);
            }
        }
        if !self.state.is_changed() {
            return;
        }
        // Another window of the round may have filled the memory that this one counted on.
        if self.state.is_overfull() {
            return self.state.undo();
        }
        let (before, best) = (self.state.makespan(), self.makespan());
        match self.state.evaluate(limit) {
            None => self.state.undo(),
            Some(makespan) => {
                self.state.keep();
                if makespan < before {
                    self.barren = 0;
                }
                if makespan < best {
                    self.found_at = self.visits();
                }
            }
        }
    }
}

/// A window after its search: the best state, or the last state if none is better than the first.
struct Searched {
    window: Window,
    found: Found,
    visits: u64,
}

impl Searched {
    fn of(state: &State<'_>, row: usize, size: usize, seed: u64, cooling: Cooling) -> Self {
        let end_row = (row + size).min(state.n_rows());
        let window = Window::of(state, row, end_row);
        let work = window.work();
        let problem = window.problem(state, &work);
        let start = window.start(state);
        let mut chain = Chain::cooled(&problem, &start, seed, 0, Stop::NEVER, cooling);
        let before = chain.best().makespan;
        chain.run(MOVES);
        let visits = chain.visits() + ((end_row - row) * state.stride) as u64;
        let found = if chain.best().makespan < before { chain.best().clone() } else { chain.last() };
        Self { window, found, visits }
    }
}

/// A stretch of a state's order, as a graph of its own. The first ops stand for what comes before, one per
/// device. Then come the ops of the stretch, as they run. The last ops stand for what follows, one per
/// device.
struct Window {
    /// The first position of the window, and the first row after the window.
    first: usize,
    end_row: usize,
    /// The row with whose checkpoint the window begins.
    row: usize,
    n_devices: usize,
    ops: Vec<OpId>,
    edges: Vec<Edge>,
    /// The whole's tensor of each key. Tensors made in the window come first.
    tensors: Vec<TensorId>,
    n_made: usize,
    homes: Vec<HomeTensor>,
    /// Per made tensor and device, the time that ops after the window take from its arrival.
    rest: Vec<Ticks>,
}

impl Window {
    fn of(state: &State<'_>, row: usize, end_row: usize) -> Self {
        let k = state.problem.n_devices;
        let (first, end) = (row * state.stride, (end_row * state.stride).min(state.order.len()));
        let mut window = Self {
            first,
            row,
            end_row,
            n_devices: k,
            ops: state.order[first..end].to_vec(),
            edges: Vec::new(),
            tensors: Vec::new(),
            n_made: 0,
            homes: Vec::new(),
            rest: Vec::new(),
        };
        window.find_made(state);
        window.find_read(state);
        window
    }

    fn n_ops(&self) -> usize {
        self.ops.len() + 2 * self.n_devices
    }

    /// Whether a position of the whole is in the window.
    fn contains(&self, position: usize) -> bool {
        (self.first..self.first + self.ops.len()).contains(&position)
    }

    /// The whole's op of a number.
    fn op(&self, local: OpId) -> OpId {
        self.ops[local.ix() - self.n_devices]
    }

    /// The number in the window of the op at a position of the whole.
    fn local(&self, position: usize) -> OpId {
        OpId::new(position - self.first + self.n_devices)
    }

    /// Finds the tensors made in the window and the ops that read them.
    fn find_made(&mut self, state: &State<'_>) {
        let (problem, k) = (state.problem, self.n_devices);
        let (graph, end) = (&problem.work.graph, self.first + self.ops.len());
        for i in 0..self.ops.len() {
            let src = self.local(self.first + i);
            for t in graph.outputs(self.ops[i]) {
                let tensor = self.tensors.len() as u32;
                self.tensors.push(t);
                self.rest.resize(self.rest.len() + k, 0);
                for &v in graph.consumers(t) {
                    let position = state.position[v.ix()] as usize;
                    if position < end {
                        self.edges.push(Edge { src, dst: self.local(position), tensor });
                        continue;
                    }
                    let d = state.device[v.ix()];
                    let rest = &mut self.rest[tensor as usize * k + d.ix()];
                    *rest = (*rest).max(problem.length(v, d) + state.bottom[v.ix()]);
                    let dst = OpId::new(self.n_ops() - k + d.ix());
                    self.edges.push(Edge { src, dst, tensor });
                }
            }
        }
        self.n_made = self.tensors.len();
    }

    /// Finds the tensors made before the window and the ops of the window that read them.
    fn find_read(&mut self, state: &State<'_>) {
        let (problem, graph) = (state.problem, &state.problem.work.graph);
        let mut read: Vec<(TensorId, OpId)> = Vec::new();
        for (i, u) in self.ops.iter().enumerate() {
            for &t in problem.reads.row(u.ix()) {
                let is_made =
                    !graph.is_home(t) && state.position[graph.source(t).ix()] as usize >= self.first;
                if !is_made {
                    read.push((t, self.local(self.first + i)));
                }
            }
        }
        read.sort_unstable();
        for same in read.chunk_by(|a, b| a.0 == b.0) {
            let t = same[0].0;
            self.homes.push(HomeTensor {
                home: OpId(state.device[graph.source(t).ix()].0),
                consumers: same.iter().map(|&(_, u)| u).collect(),
                key: self.tensors.len() as u32,
            });
            self.tensors.push(t);
        }
    }

    fn work(&self) -> Workload {
        let graph = Graph::with_homes(self.n_ops(), self.edges.iter().copied(), &self.homes);
        let graph = graph.expect("ops run in order");
        Workload::plain(graph, &Columns::default()).expect("no columns")
    }

    /// The state that the window is in.
    fn start(&self, state: &State<'_>) -> Found {
        let all = || (0..self.n_devices).map(DeviceId::new);
        let inner = self.ops.iter().map(|u| state.device[u.ix()]);
        let device = all().chain(inner).chain(all()).collect();
        Found { device, order: (0..self.n_ops()).map(OpId::new).collect(), makespan: 0 }
    }

    /// The window as a problem of its own, with all that surrounds it as the `state` has it.
    fn problem<'w>(&self, state: &State<'w>, work: &'w Workload) -> Problem<'w> {
        let (whole, k) = (state.problem, self.n_devices);
        let graph = &work.graph;
        let width = k + state.home_free.len();
        let before = &state.checkpoints[state.checkpoint(self.row)];
        let (free, channel_free) = before[..width].split_at(k);
        let (next, channel_rest) = state.next[self.end_row * width..][..width].split_at(k);
        let least = |ticks: &[Ticks]| ticks.iter().min().copied().unwrap_or(0);

        let tensor = |t: TensorId| self.tensors[graph.key(t) as usize];
        let transfer =
            |t| whole.transfer[tensor(t).ix() * whole.n_routes..][..whole.n_routes].iter().copied();
        let rest = |t: TensorId| self.rest[graph.key(t) as usize * k..][..k].iter().copied();
        let there = self.there(state);
        let made = self.homes.iter().enumerate().map(|(i, home)| there[i * k + home.home.ix()]).collect();
        let is_sent = |t: &TensorId| there[(t.ix() - graph.n_produced()) * k..][..k].contains(&Ticks::MAX);
        let homes: Vec<TensorId> = graph.tensors().skip(graph.n_produced()).filter(is_sent).collect();
        let (rank, homes_at) = ranks(graph, &homes);
        let mut at_home = vec![false; self.n_ops()];
        for u in homes.iter().flat_map(|&t| graph.consumers(t)) {
            at_home[u.ix()] = true;
        }

        let (unit_of, unit) = self.units(whole);
        let (allowed, capacity) = self.choices(state, &unit);
        let pinned = || (0..k).map(|d| 1 << d);
        let none = || std::iter::repeat_n(0, k);
        let members = unit_of.iter().enumerate().map(|(u, &unit)| (unit as usize, OpId::new(u)));
        Problem {
            work,
            cluster: whole.cluster,
            n_devices: k,
            time: self.times(whole, free, next),
            reads: reads(graph),
            transfer: graph.tensors().flat_map(transfer).collect(),
            n_routes: whole.n_routes,
            route: whole.route.clone(),
            senders: whole.senders.clone(),
            homes,
            rank,
            homes_at,
            at_home,
            tail: none().chain(self.ops.iter().map(|u| whole.tail[u.ix()])).chain(none()).collect(),
            units: Csr::from_pairs(unit.len() + 2 * k, members),
            allowed: pinned().chain(allowed).chain(pinned()).collect(),
            charge: none().chain(unit.iter().map(|&u| whole.charge[u])).chain(none()).collect(),
            unit_of,
            capacity,
            open: k..self.n_ops() - k,
            channel_free: channel_free.to_vec(),
            channel_rest: channel_rest.to_vec(),
            copy: self.copies(whole, graph),
            launch: self.launches(whole),
            host_free: before[width + k..].to_vec(),
            made,
            surroundings: Surroundings {
                there,
                rest: graph.tensors().take(graph.n_produced()).flat_map(rest).collect(),
                outside: least(free) + least(next),
            },
        }
    }

    /// What sending keeps senders busy for, as in the whole problem.
    fn copies(&self, whole: &Problem<'_>, graph: &Graph) -> Vec<Ticks> {
        let n_types = if whole.copy.is_empty() { 0 } else { whole.cluster.types().len() };
        let tensor = |t: TensorId| self.tensors[graph.key(t) as usize];
        let copied = |t| whole.copy[tensor(t).ix() * n_types..][..n_types].iter().copied();
        graph.tensors().flat_map(copied).collect()
    }

    /// What launches take: of the ops of the window as in the whole problem, of what surrounds them nothing.
    fn launches(&self, whole: &Problem<'_>) -> Vec<Ticks> {
        if whole.launch.is_empty() {
            return Vec::new();
        }
        let none = || std::iter::repeat_n(0, self.n_devices);
        none().chain(self.ops.iter().map(|u| whole.launch[u.ix()])).chain(none()).collect()
    }

    /// Ticks per op and device. An op that stands for what comes before takes until its device is `free`, one
    /// that stands for what follows as long as the rest on its device from the `next` op on.
    fn times(&self, whole: &Problem<'_>, free: &[Ticks], next: &[Ticks]) -> Vec<Ticks> {
        let k = self.n_devices;
        let anywhere = |&ticks: &Ticks| std::iter::repeat_n(ticks, k);
        let inner = self.ops.iter().flat_map(|u| &whole.time[u.ix() * k..][..k]).copied();
        free.iter().flat_map(anywhere).chain(inner).chain(next.iter().flat_map(anywhere)).collect()
    }

    /// Per home tensor and device, when the tensor is there without being sent; [`Ticks::MAX`]
    /// where it must be sent.
    fn there(&self, state: &State<'_>) -> Vec<Ticks> {
        let k = self.n_devices;
        let mut there = Vec::with_capacity(self.homes.len() * k);
        for (&t, home) in self.tensors[self.n_made..].iter().zip(&self.homes) {
            let from = DeviceId(home.home.0);
            there.extend((0..k).map(DeviceId::new).map(|to| {
                let is_there = to == from || state.reader_mask[t.ix()] >> to.0 & 1 == 1;
                if is_there { state.arrival(t, to) } else { Ticks::MAX }
            }));
        }
        there
    }

    /// The devices that each unit may use, as bits, and what each device may hold. A unit with an op outside
    /// the window stays where it is.
    fn choices(&self, state: &State<'_>, units: &[usize]) -> (Vec<u64>, Vec<u64>) {
        let whole = state.problem;
        let is_inside = |u: &OpId| self.contains(state.position[u.ix()] as usize);
        let is_free = |u: usize| whole.units.row(u).iter().all(is_inside);
        let stays = |u: usize| 1 << state.device_of(u).0;
        let allowed = |&u: &usize| if is_free(u) { whole.allowed[u] } else { stays(u) };
        let mut capacity: Vec<u64> =
            whole.capacity.iter().zip(&state.used).map(|(capacity, used)| capacity - used).collect();
        for &u in units {
            let room = &mut capacity[state.device_of(u).ix()];
            *room = room.saturating_add(whole.charge[u]);
        }
        (units.iter().map(allowed).collect(), capacity)
    }

    /// The unit of each op; then, of each unit between the first and the last `n_devices`, its number in the
    /// whole. The first and the last units are those of ops that stand for what surrounds the window.
    fn units(&self, whole: &Problem<'_>) -> (Vec<u32>, Vec<usize>) {
        let k = self.n_devices as u32;
        let mut known = std::collections::BTreeMap::new();
        let mut unit = Vec::new();
        let mut unit_of: Vec<u32> = (0..k).collect();
        for &u in &self.ops {
            unit_of.push(*known.entry(whole.unit(u)).or_insert_with(|| {
                unit.push(whole.unit(u));
                k + unit.len() as u32 - 1
            }));
        }
        let n = k + unit.len() as u32;
        unit_of.extend(n..n + k);
        (unit_of, unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::cluster::{Device, Links};

    /// Layers of ops, each reading two of the layer before, on devices at random.
    fn layered(width: usize, random: &mut Random) -> (Workload, Vec<DeviceId>) {
        let n = 16 * width;
        let ends = (width..n).flat_map(|u| [u; 2]);
        let (src, dst): (Vec<i64>, Vec<i64>) =
            ends.map(|u| ((u - u % width - width + random.below(width)) as i64, u as i64)).unzip();
        let graph = Graph::new(n, &src, &dst, None).expect("layers have no cycle");
        let work = Workload::plain(graph, &Columns::default()).expect("no columns");
        (work, (0..n).map(|_| DeviceId::new(random.below(3))).collect())
    }

    fn cluster() -> crate::cluster::Cluster {
        let device = |name: &str| Device { name: name.into(), type_name: "gpu".into(), memory: 0 };
        let link = |a: &str, b: &str, channel: &str| Links {
            from: vec![a.into()],
            to: vec![b.into()],
            bandwidth: 1e9,
            latency: 3e-6,
            channels: vec![channel.into()],
        };
        let links = [link("a", "b", "x"), link("b", "a", "y"), link("a", "c", "x"), link("c", "a", "z")];
        let rest = [link("b", "c", "y"), link("c", "b", "z")];
        let links: Vec<Links> = links.into_iter().chain(rest).collect();
        crate::cluster::Cluster::new(vec![device("a"), device("b"), device("c")], &links).expect("connected")
    }

    /// As long as nothing is changed, every op of a window finishes when it does in the whole, and the
    /// makespan through it is that of the whole where the critical chain passes.
    #[test]
    fn a_window_is_a_stretch_of_the_whole() {
        let (mut random, cluster) = (Random::new(0, 0), cluster());
        for width in [2, 5, 9] {
            let (work, device) = layered(width, &mut random);
            let clock = Clock::for_horizon(1.0).expect("a second");
            let time: Vec<Ticks> =
                work.graph.ops().map(|_| clock.ticks(1e-6 * random.below(9) as f64)).collect();
            let problem =
                Problem::new(&work, &cluster, clock, &time, &[], &[0; 3], None).expect("few devices");
            let mut state = State::new(&problem, &device, work.graph.topo());
            state.renew_bottoms(0);
            let n_rows = state.n_rows();
            let mut longest = 0;
            for (row, end_row) in (0..n_rows).flat_map(|a| (a + 1..=n_rows).map(move |b| (a, b))) {
                let window = Window::of(&state, row, end_row);
                let inner = window.work();
                let part = window.problem(&state, &inner);
                let start = window.start(&state);
                let inside = State::new(&part, &start.device, &start.order);
                for (i, &u) in window.ops.iter().enumerate() {
                    assert_eq!(inside.finish(window.local(window.first + i)), state.finish(u));
                }
                assert!(inside.makespan() <= state.makespan());
                longest = longest.max(inside.makespan());
            }
            assert_eq!(longest, state.makespan());
        }
    }
}
