//! Random graphs, workloads and clusters, and small helpers for graphs written down by hand.
//!
//! Random times are whole microseconds and most links carry whole bytes per microsecond, so that
//! every expected value is exact.

#![allow(dead_code, reason = "every test binary uses a part")]

use std::collections::BTreeMap;

use loadmaster_core::Error;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::cluster::{Cluster, Device, Links, SendCost};
use loadmaster_core::free_memory::{Memory, OnOom, charge_to_leads};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId, TensorId};
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use loadmaster_core::place::adjusting::adjusting;
use loadmaster_core::reduce::{Reduced, reduce};
use loadmaster_core::schedule::admission::Admission;
use loadmaster_core::schedule::{Engine, Scheduled};
use loadmaster_core::simulate::{LinkOrder, Options, Policy, Schedule, Simulator};
use loadmaster_core::workload::{ANY_TYPE, Columns, Times, Workload};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The same cases on every run; `PROPTEST_RNG_SEED` asks for others.
pub fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(0x10ad);
    }
    config
}

/// One microsecond.
pub const US: f64 = 1e-6;

pub fn ops(ids: &[u32]) -> Vec<OpId> {
    ids.iter().map(|&i| OpId(i)).collect()
}

pub fn on(devices: &[u32]) -> Vec<DeviceId> {
    devices.iter().map(|&d| DeviceId(d)).collect()
}

/// A graph of `n` ops with one tensor per op.
pub fn graph(n: usize, edges: &[(i64, i64)]) -> Graph {
    let (src, dst): (Vec<i64>, Vec<i64>) = edges.iter().copied().unzip();
    Graph::new(n, &src, &dst, None).expect("a valid graph")
}

/// The same with `bytes` per op's tensor.
pub fn plain(n: usize, edges: &[(i64, i64)], bytes: &[u64]) -> Workload {
    Workload::plain(graph(n, edges), &Columns { tensor_bytes: bytes, ..Columns::default() })
        .expect("a valid workload")
}

/// Whole microseconds per op, one device type.
pub fn micros(times: &[u32]) -> Times {
    Times::new(times.len(), 1, times.iter().map(|&t| f64::from(t) * US).collect()).expect("valid times")
}

pub fn device(d: usize, type_name: &str, memory: u64) -> Device {
    Device { name: format!("d{d}"), type_name: type_name.into(), memory }
}

/// `k` devices of one type and a terabyte each.
pub fn devices(k: usize) -> Vec<Device> {
    (0..k).map(|d| device(d, "gpu", 1 << 40)).collect()
}

/// A link of `latency` microseconds and 1 byte per microsecond.
pub fn link(from: usize, to: usize, latency: f64, channels: &[String]) -> Links {
    Links {
        from: vec![format!("d{from}")],
        to: vec![format!("d{to}")],
        bandwidth: 1e6,
        latency: latency * US,
        channels: channels.to_vec(),
    }
}

pub fn pairs(k: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..k * k).map(move |i| (i / k, i % k)).filter(|(a, b)| a != b)
}

/// A channel for each ordered pair.
pub fn mesh(k: usize, latency: f64) -> Cluster {
    let links: Vec<Links> = pairs(k).map(|(a, b)| link(a, b, latency, &[])).collect();
    Cluster::new(devices(k), &links).expect("a valid mesh")
}

/// One channel for all pairs.
pub fn bridge(k: usize, latency: f64) -> Cluster {
    let links: Vec<Links> = pairs(k).map(|(a, b)| link(a, b, latency, &["bridge".into()])).collect();
    Cluster::new(devices(k), &links).expect("a valid bridge")
}

/// A port for each device, held by all it sends and receives.
pub fn one_port(k: usize, latency: f64) -> Cluster {
    let ports = |a: usize, b: usize| [format!("port{a}"), format!("port{b}")];
    let links: Vec<Links> = pairs(k).map(|(a, b)| link(a, b, latency, &ports(a, b))).collect();
    Cluster::new(devices(k), &links).expect("a valid cluster")
}

/// Neighbours are joined, so the first device reaches the last in `k - 1` hops.
pub fn line(k: usize, latency: f64) -> Cluster {
    let links: Vec<Links> =
        pairs(k).filter(|(a, b)| a.abs_diff(*b) == 1).map(|(a, b)| link(a, b, latency, &[])).collect();
    Cluster::new(devices(k), &links).expect("a valid line")
}

/// Adjusting Placement in the classic model, given bytes charged for the whole step.
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn adjust(
    work: &Workload,
    cluster: &Cluster,
    clock: Clock,
    order: &[OpId],
    time: &[Ticks],
    bytes: &[u64],
    capacity: &[u64],
    on_oom: OnOom,
) -> Result<Scheduled, Error> {
    let charge = charge_to_leads(&work.lead, bytes);
    let admission = Admission::Charged(Memory::new(work, cluster, &work.lead, &charge, capacity, on_oom));
    let mut engine = Engine::new(work, cluster, clock, time, &work.lead, false, admission);
    adjusting(&mut engine, clock, order)?;
    Ok(engine.into_scheduled())
}

/// Runs the simulator; times in microseconds make the ticks that come back whole multiples of
/// [`tick`].
pub fn run(
    work: &Workload,
    cluster: &Cluster,
    times: &Times,
    placement: &[DeviceId],
    priority: &[i32],
    options: Options,
) -> Schedule {
    let simulator = Simulator::new(work, cluster, times).expect("countable times");
    simulator.run(placement, priority, options).expect("a valid placement")
}

/// Ticks in a microsecond for this problem.
pub fn tick(work: &Workload, cluster: &Cluster, times: &Times) -> u64 {
    work.clock(times, cluster).expect("countable times").ticks(US)
}

/// All ways to simulate; `Fixed` needs priorities that can run.
pub fn all_options(policies: &[Policy]) -> Vec<Options> {
    let contentions = [None, Some(LinkOrder::Fifo), Some(LinkOrder::Priority)];
    let both = |policy: &Policy| {
        let policy = *policy;
        contentions.map(|contention| Options { policy, contention, record_memory: true })
    };
    policies.iter().flat_map(both).collect()
}

/// `below[u][v]`: whether a path leads from `u` to `v`.
pub fn reachable(graph: &Graph) -> Vec<Vec<bool>> {
    let mut below = vec![vec![false; graph.n_ops()]; graph.n_ops()];
    for &u in graph.topo().iter().rev() {
        for &v in graph.successors(u) {
            let row = below[v.ix()].clone();
            below[u.ix()].iter_mut().zip(row).for_each(|(b, beyond)| *b |= beyond);
            below[u.ix()][v.ix()] = true;
        }
    }
    below
}

/// Columns of a random acyclic graph.
#[derive(Clone, Debug)]
pub struct Dag {
    pub n: usize,
    pub src: Vec<i64>,
    pub dst: Vec<i64>,
    pub tensor: Vec<i64>,
    /// A topological order other than that of the ids.
    pub order: Vec<usize>,
}

impl Dag {
    /// `edges` are any two ops and which output of the first they carry, 3 being a control edge; ops
    /// come in the order of `rank`.
    fn new(n: usize, edges: &[(u8, u8, u8)], rank: &[u8]) -> Self {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|&u| (rank[u], u));
        let mut position = vec![0; n];
        order.iter().enumerate().for_each(|(p, &u)| position[u] = p);
        let mut dag = Self { n, src: Vec::new(), dst: Vec::new(), tensor: Vec::new(), order };
        let mut ids = BTreeMap::new();
        for &(a, b, output) in edges {
            let (a, b) = (a as usize % n, b as usize % n);
            if a == b {
                continue;
            }
            let (u, v) = if position[a] < position[b] { (a, b) } else { (b, a) };
            let next = ids.len() as i64;
            dag.src.push(u as i64);
            dag.dst.push(v as i64);
            dag.tensor.push(if output == 3 { -1 } else { *ids.entry((u, output)).or_insert(next) });
        }
        dag
    }

    pub fn graph(&self) -> Graph {
        Graph::new(self.n, &self.src, &self.dst, Some(&self.tensor)).expect("acyclic by construction")
    }

    /// The same graph with ops numbered as they run.
    pub fn numbered(&self) -> Graph {
        Graph::numbered(self.n, &self.src, &self.dst, Some(&self.tensor)).expect("acyclic by construction")
    }

    /// One past the largest tensor id.
    pub fn n_keys(&self) -> usize {
        self.tensor.iter().max().map_or(0, |&t| (t + 1) as usize)
    }
}

/// Acyclic graphs: parallel edges, shared tensors, control edges, isolated ops, ids in any order.
pub fn dags(max_ops: usize) -> impl Strategy<Value = Dag> {
    prop_oneof![1 => 1..=max_ops, 2 => max_ops.div_ceil(2)..=max_ops]
        .prop_flat_map(|n| (Just(n), vec((any::<u8>(), any::<u8>(), 0u8..4), 0..3 * n), vec(any::<u8>(), n)))
        .prop_map(|(n, edges, rank)| Dag::new(n, &edges, &rank))
}

/// Sizes and rules per op or tensor, of which a graph takes as many as it needs.
#[derive(Clone, Debug)]
pub struct Sizes {
    bytes: Vec<u64>,
    resident: Vec<u64>,
    workspace: Vec<u64>,
    colocation: Vec<i64>,
    allowed: Vec<u64>,
}

/// Each op is allowed everywhere or on one type, the same for all, so that no set is forbidden.
fn sizes(max_ops: usize) -> impl Strategy<Value = Sizes> {
    let bytes = prop_oneof![1 => Just(0u64), 4 => 1u64..30];
    let group = prop_oneof![4 => Just(-1i64), 1 => 0i64..3];
    let only = (1u64..3, vec(prop_oneof![3 => Just(ANY_TYPE), 1 => Just(0u64)], max_ops));
    (
        vec(bytes, 3 * max_ops),
        vec(0u64..20, max_ops),
        vec(0u64..10, max_ops),
        vec(group, max_ops),
        only.prop_map(|(only, masks)| {
            masks.into_iter().map(|m| if m == 0 { only } else { m }).collect::<Vec<_>>()
        }),
    )
        .prop_map(|(bytes, resident, workspace, colocation, allowed)| Sizes {
            bytes,
            resident,
            workspace,
            colocation,
            allowed,
        })
}

/// Plain workloads; every op may run on type 0, 1 or both.
pub fn plain_works(max_ops: usize) -> impl Strategy<Value = Workload> {
    twins(max_ops).prop_map(|(given, _)| given)
}

/// One plain workload twice: ops numbered as given, and as they run.
pub fn twins(max_ops: usize) -> impl Strategy<Value = (Workload, Workload)> {
    (dags(max_ops), sizes(max_ops)).prop_map(|(dag, sizes)| {
        let columns = Columns {
            tensor_bytes: &sizes.bytes,
            resident: &sizes.resident[..dag.n],
            workspace: &sizes.workspace[..dag.n],
            output_bytes: &[],
            colocation: &sizes.colocation[..dag.n],
            allowed: &sizes.allowed[..dag.n],
            ..Columns::default()
        };
        [dag.graph(), dag.numbered()].map(|g| Workload::plain(g, &columns).expect("valid columns")).into()
    })
}

/// A model's graph with the types its ops may use.
#[derive(Clone, Debug)]
pub struct Model {
    pub graph: OpGraph,
    pub allowed: Vec<u64>,
}

impl Model {
    pub fn reduce(&self) -> Reduced {
        reduce(&self.graph, &self.allowed).expect("a reducible model")
    }
}

/// What an op of a random model is, by a number below 10; the rest are ordinary.
const VIEW: std::ops::Range<u8> = 0..2;
const GETITEM: u8 = 2;
const IN_PLACE: std::ops::Range<u8> = 3..5;
/// Of the ops without inputs.
const PLACEHOLDER: std::ops::Range<u8> = 5..9;

/// Models with views (whole, slices, forwarded tensors), placeholders and in-place ops. The last op
/// in topological order is an ordinary one.
pub fn models(max_ops: usize) -> impl Strategy<Value = Model> {
    let kinds = vec(0u8..10, max_ops);
    let slices = vec(0u64..4, max_ops);
    (dags(max_ops), sizes(max_ops), kinds, slices).prop_map(|(dag, sizes, kinds, slices)| {
        let n = dag.n;
        let last = dag.order[n - 1];
        let key_bytes = &sizes.bytes;
        let mut dag = dag;
        let mut bytes: Vec<u64> =
            dag.tensor.iter().map(|&t| if t < 0 { 0 } else { key_bytes[t as usize] }).collect();
        let mut columns = OpColumns {
            name: (0..n).map(|u| format!("op{u}")).collect(),
            view: vec![false; n],
            placeholder: vec![false; n],
            alias_of: vec![-1; n],
            near: vec![-1; n],
            colocation: sizes.colocation[..n].to_vec(),
            flops: vec![0; n],
            accessed: vec![0; n],
            output_bytes: vec![0; n],
            resident: vec![0; n],
            workspace: sizes.workspace[..n].to_vec(),
            ..OpColumns::default()
        };
        let mut owner: Vec<usize> = (0..n).collect();
        for &u in &dag.order {
            let data = |i: &usize| dag.dst[*i] == u as i64 && dag.tensor[*i] >= 0;
            let inputs: Vec<usize> = (0..dag.src.len()).filter(data).collect();
            // Tensors are numbered by producer, then id: the first of these is what a view shows.
            let shown = inputs.iter().copied().min_by_key(|&i| (dag.src[i], dag.tensor[i]));
            let own = if u == last { u8::MAX } else { kinds[u] };
            match (own, shown) {
                (kind, Some(shown)) if VIEW.contains(&kind) || kind == GETITEM => {
                    columns.view[u] = true;
                    owner[u] = owner[dag.src[shown] as usize];
                    columns.alias_of[u] = owner[u] as i64;
                    let (id, size) = (dag.tensor[shown], bytes[shown]);
                    let forwards = own == GETITEM && inputs.iter().all(|&i| dag.tensor[i] == id);
                    for i in (0..dag.src.len()).filter(|&i| dag.src[i] == u as i64) {
                        if dag.tensor[i] >= 0 {
                            bytes[i] = size.saturating_sub(slices[u]);
                            if forwards {
                                (dag.tensor[i], bytes[i]) = (id, size);
                            }
                        }
                    }
                }
                (kind, Some(shown)) if IN_PLACE.contains(&kind) => {
                    owner[u] = owner[dag.src[shown] as usize];
                    columns.alias_of[u] = owner[u] as i64;
                }
                (kind, None) if PLACEHOLDER.contains(&kind) && dag.dst.iter().all(|&d| d != u as i64) => {
                    columns.placeholder[u] = true;
                    columns.resident[u] = sizes.resident[u];
                }
                _ => {
                    let mut sent: Vec<(i64, u64)> = (0..dag.src.len())
                        .filter(|&i| dag.src[i] == u as i64 && dag.tensor[i] >= 0)
                        .map(|i| (dag.tensor[i], bytes[i]))
                        .collect();
                    sent.sort_unstable();
                    sent.dedup();
                    // Some bytes that nobody reads, in a third of the ops.
                    columns.output_bytes[u] =
                        sent.iter().map(|s| s.1).sum::<u64>() + sizes.resident[u].saturating_sub(12);
                }
            }
        }
        columns.src = dag.src;
        columns.dst = dag.dst;
        columns.tensor = Some(dag.tensor);
        columns.bytes = bytes;
        let graph = OpGraph::new(columns).expect("a valid model");
        Model { graph, allowed: sizes.allowed[..n].to_vec() }
    })
}

/// Plain workloads and reduced models.
pub fn works(max_ops: usize) -> impl Strategy<Value = Workload> {
    prop_oneof![plain_works(max_ops), models(max_ops).prop_map(|m| m.reduce().work)]
}

/// Up to four devices of one or two types: full mesh, shared bridge, one-port NICs or a line of hops.
pub fn clusters() -> impl Strategy<Value = Cluster> {
    clusters_linked(0..4)
}

/// Those of them with a channel for each ordered pair.
pub fn meshes() -> impl Strategy<Value = Cluster> {
    clusters_linked(0..1)
}

/// `kinds` of [`clusters`], in the order in which it names them.
fn clusters_linked(kinds: std::ops::Range<usize>) -> impl Strategy<Value = Cluster> {
    let latency = prop_oneof![Just(0.0), Just(1.0), Just(5.0)];
    let bandwidth = prop_oneof![Just(0.5e6), Just(1e6), Just(2e6)];
    let bandwidth = prop_oneof![vec(bandwidth.clone(), 16), bandwidth.prop_map(|equal| vec![equal; 16])];
    (kinds, 1usize..5, 1usize..3, latency, bandwidth, vec(0u64..150, 4)).prop_map(
        |(kind, k, types, latency, bandwidth, memory)| {
            let type_name = |d: usize| if d.is_multiple_of(types) { "a" } else { "b" };
            let devices = (0..k).map(|d| device(d, type_name(d), memory[d])).collect();
            let channels = |a: usize, b: usize| match kind {
                1 => vec!["bridge".to_owned()],
                2 => vec![format!("port{a}"), format!("port{b}")],
                _ => Vec::new(),
            };
            let links: Vec<Links> = pairs(k)
                .filter(|(a, b)| kind != 3 || a.abs_diff(*b) == 1)
                .map(|(a, b)| Links {
                    bandwidth: bandwidth[a * k + b],
                    ..link(a, b, latency, &channels(a, b))
                })
                .collect();
            Cluster::new(devices, &links).expect("a valid cluster")
        },
    )
}

/// Something to simulate.
#[derive(Clone, Debug)]
pub struct Case {
    pub work: Workload,
    pub cluster: Cluster,
    pub times: Times,
    pub placement: Vec<DeviceId>,
    pub priority: Vec<i32>,
}

impl Case {
    pub fn run(&self, options: Options) -> Schedule {
        run(&self.work, &self.cluster, &self.times, &self.placement, &self.priority, options)
    }

    /// Position per op in a topological order: priorities that a fixed sequence can follow.
    pub fn topological_priority(&self) -> Vec<i32> {
        let mut priority = vec![0; self.work.n_ops()];
        for (i, u) in self.work.graph.topo().iter().enumerate() {
            priority[u.ix()] = i as i32;
        }
        priority
    }

    /// The devices an op may use.
    pub fn allowed(&self, op: OpId) -> Vec<DeviceId> {
        self.cluster.device_ids().filter(|&d| self.work.allows(op, &self.cluster, d)).collect()
    }
}

/// Cases whose placement obeys sets and allowed types. A third of them has no op of no time.
pub fn cases_of(works: impl Strategy<Value = Workload>, max_ops: usize) -> impl Strategy<Value = Case> {
    cases_on(works, clusters(), max_ops)
}

/// The same on given clusters.
pub fn cases_on(
    works: impl Strategy<Value = Workload>,
    clusters: impl Strategy<Value = Cluster>,
    max_ops: usize,
) -> impl Strategy<Value = Case> {
    let per_op = vec((0u32..10, 0u32..10, any::<u8>(), -5i32..20), max_ops);
    (works, clusters, per_op, 0u32..3).prop_map(|(mut work, cluster, per_op, least)| {
        let n_types = cluster.types().len();
        if n_types == 1 {
            work.allowed.fill(ANY_TYPE);
        }
        let row = |&(a, b, _, _): &(u32, u32, u8, i32)| [a, b].into_iter().take(n_types);
        let seconds = per_op[..work.n_ops()]
            .iter()
            .flat_map(row)
            .map(|t| f64::from(if least == 1 { t.max(1) } else { t }) * US)
            .collect();
        let times = Times::new(work.n_ops(), n_types, seconds).expect("valid times");
        let n = work.n_ops();
        let priority = per_op[..n].iter().map(|p| p.3).collect();
        let mut case = Case { work, cluster, times, placement: Vec::new(), priority };
        let of_set = |op: OpId| {
            let first = case.work.sets.row(case.work.set_of[op.ix()] as usize)[0];
            let allowed = case.allowed(first);
            allowed[per_op[first.ix()].2 as usize % allowed.len()]
        };
        case.placement = case.work.graph.ops().map(of_set).collect();
        case
    })
}

pub fn cases(max_ops: usize) -> impl Strategy<Value = Case> {
    cases_of(works(max_ops), max_ops)
}

/// The tensors that must travel, with where to: those with a reader on another device.
pub fn messages(work: &Workload, placement: &[DeviceId]) -> Vec<(TensorId, DeviceId)> {
    let graph = &work.graph;
    let mut all: Vec<_> = graph
        .tensors()
        .flat_map(|t| graph.consumers(t).iter().map(move |c| (t, placement[c.ix()])))
        .filter(|&(t, d)| placement[graph.source(t).ix()] != d)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// `latency` microseconds per message and 1 byte per microsecond.
pub fn cost(type_name: &str, latency: f64) -> SendCost {
    SendCost { type_name: type_name.into(), latency: latency * US, bandwidth: 1e6 }
}

/// A cluster where some types pay for sending.
pub fn with_costs(cluster: Cluster, costs: &[SendCost]) -> Cluster {
    cluster.with_send_costs(costs).expect("costs of types that there are")
}

/// Times of ops with microseconds that their launches take.
pub fn launched_in(times: Times, dispatch: &[u32]) -> Times {
    times.with_dispatch(dispatch.iter().map(|&t| f64::from(t) * US).collect()).expect("good times")
}

/// A case that has both costs, or one.
#[derive(Clone, Debug)]
pub struct Costly {
    pub case: Case,
    /// Whether the priorities are a topological order.
    pub is_sorted: bool,
}

/// Cases that have both costs, or one, or none.
pub fn costly(max_ops: usize) -> impl Strategy<Value = Costly> {
    let dispatch = prop_oneof![Just(None), vec(0u32..6, max_ops).prop_map(Some)];
    let send = prop_oneof![Just(None), (0u32..4, any::<bool>()).prop_map(Some)];
    (cases(max_ops), dispatch, send, any::<bool>(), any::<bool>()).prop_map(
        |(mut case, dispatch, send, has_host_each, is_sorted)| {
            case.cluster = case.cluster.with_host_each(has_host_each);
            if let Some(dispatch) = dispatch {
                case.times = launched_in(case.times, &dispatch[..case.work.n_ops()]);
            }
            if let Some((latency, of_all)) = send {
                let types = case.cluster.types();
                let paying = if of_all { types } else { &types[..1] };
                let costs: Vec<_> = paying.iter().map(|name| cost(name, f64::from(latency))).collect();
                case.cluster = with_costs(case.cluster, &costs);
            }
            if is_sorted {
                case.priority = case.topological_priority();
            }
            Costly { case, is_sorted }
        },
    )
}
