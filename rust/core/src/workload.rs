//! A graph with what its ops need: bytes, storages, sets of colocated ops, allowed device types.
//!
//! Strategies place a workload and the simulator runs it. It is the *reduced* graph of a model (see
//! [`crate::reduce`]), a coarse graph ([`crate::coarsen::contract`]) or a plain graph given as
//! arrays. Op times are kept beside it ([`Times`]).

use crate::border::{first_wrong, is_no_time};
use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::collective::{Collectives, MemberColumns};
use crate::csr::{Csr, Filling};
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId, StorageId, TensorId};
use crate::numbering::Numbering;
use crate::union::Union;

/// Every device type is allowed.
pub const ANY_TYPE: u64 = u64::MAX;

/// How long a storage lives on the device of the op that allocates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// To the last consumer there and the last transfer away; at least while its op runs.
    UntilUsed,
    /// To the end: an output of the graph.
    UntilEnd,
}

/// A piece of memory that an op allocates when it starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage {
    /// The op that allocates it.
    pub op: OpId,
    /// Its size.
    pub bytes: u64,
    /// How long it lives.
    pub lifetime: Lifetime,
}

/// A graph of ops with bytes and rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The ops, and the tensors that they send each other.
    pub graph: Graph,
    /// Bytes a transfer of each tensor moves.
    pub tensor_bytes: Vec<u64>,
    /// The storage each tensor lies in; none where it lies in resident memory.
    pub tensor_storage: Vec<StorageId>,
    /// Storages in the order of the ops that allocate them.
    pub storages: Vec<Storage>,
    /// Storages of op `u`: `op_storages[u]..op_storages[u + 1]`.
    pub op_storages: Vec<u32>,
    /// Bytes per op that stay for the whole step. They include those of the placeholders that are
    /// placed with the op.
    pub resident: Vec<u64>,
    /// Bytes per op needed only while it runs.
    pub workspace: Vec<u64>,
    /// The set of colocated ops that each op is in (often of its own).
    pub set_of: Vec<u32>,
    /// Members of each set.
    pub sets: Csr<OpId>,
    /// Mask of device types each op may run on, the same within a set.
    pub allowed: Vec<u64>,
    /// The op whose placement decides where each op goes: itself, the first of its set, or the first
    /// reader of the parameter its set updates. Never a chain.
    pub lead: Vec<OpId>,
    /// Ops that stand for one member each of a collective.
    pub collectives: Collectives,
}

/// The storage for what an op allocates beside its tensors, given the `bytes` that it allocates in
/// all. It lives to the end if no op reads a tensor of the op.
fn rest_of(graph: &Graph, op: OpId, bytes: u64, tensor_bytes: &[u64]) -> Option<Storage> {
    let bytes = graph.outputs(op).fold(bytes, |left, t| left.saturating_sub(tensor_bytes[t.ix()]));
    let is_read = graph.outputs(op).any(|t| !graph.is_control(t));
    let lifetime = if is_read { Lifetime::UntilUsed } else { Lifetime::UntilEnd };
    (bytes > 0).then_some(Storage { op, bytes, lifetime })
}

/// Columns of a plain graph, one value per op in the user's numbering.
///
/// An empty column stands for zeros, with three exceptions: empty `output_bytes` are the sums of
/// ops' tensors, an empty `colocation` has no groups, and an empty `allowed` allows all types.
#[derive(Clone, Debug, Default)]
pub struct Columns<'a> {
    /// Bytes per tensor id.
    pub tensor_bytes: &'a [u64],
    /// Resident bytes per op.
    pub resident: &'a [u64],
    /// Workspace bytes per op.
    pub workspace: &'a [u64],
    /// Output bytes per op; where empty, the sum of the op's tensors.
    pub output_bytes: &'a [u64],
    /// Colocation group per op, negative: none.
    pub colocation: &'a [i64],
    /// Mask of allowed device types per op.
    pub allowed: &'a [u64],
    /// Which ops are members of collectives.
    pub members: MemberColumns<'a>,
}

impl Columns<'_> {
    /// # Errors
    /// A column that is not empty and does not have one value per op of `graph` (`tensor_bytes`:
    /// per tensor id).
    fn check(&self, graph: &Graph) -> Result<(), Error> {
        let n = graph.n_ops();
        let per_op = [
            ("resident", self.resident.len()),
            ("workspace", self.workspace.len()),
            ("output_bytes", self.output_bytes.len()),
            ("colocation", self.colocation.len()),
            ("allowed", self.allowed.len()),
        ];
        if let Some((argument, got)) = per_op.into_iter().find(|&(_, got)| got != 0 && got != n) {
            return Err(Error::WrongLength { argument, got, want: n, per: "op" });
        }
        let keys = graph.tensors().filter(|&t| !graph.is_control(t)).map(|t| graph.key(t) + 1);
        let (got, want) = (self.tensor_bytes.len(), keys.max().unwrap_or(0) as usize);
        if got != 0 && got < want {
            return Err(Error::WrongLength { argument: "tensor_bytes", got, want, per: "tensor id" });
        }
        Ok(())
    }
}

/// Storages in the order of the ops that allocate them, where each op's storages begin, and the
/// storage of each tensor.
type Storages = (Vec<Storage>, Vec<u32>, Vec<StorageId>);

/// A storage for each tensor with bytes, and one per op for the rest of its `output_bytes`.
fn plain_storages(graph: &Graph, tensor_bytes: &[u64], output_bytes: &[u64]) -> Storages {
    let rest = if output_bytes.is_empty() {
        Vec::new()
    } else {
        let of = |u| rest_of(graph, u, output_bytes[graph.index(u) as usize], tensor_bytes);
        graph.ops().filter_map(of).collect()
    };
    let sized = graph.tensors().filter(|t| tensor_bytes[t.ix()] > 0);
    let owners = sized.clone().map(|t| graph.source(t)).chain(rest.iter().map(|s| s.op));
    let mut filling = Filling::new(graph.n_ops(), owners.map(OpId::ix));
    let mut storages =
        vec![Storage { op: OpId::NONE, bytes: 0, lifetime: Lifetime::UntilUsed }; filling.n_items()];
    let mut tensor_storage = vec![StorageId::NONE; graph.n_tensors()];
    for t in sized {
        let (op, bytes) = (graph.source(t), tensor_bytes[t.ix()]);
        let at = filling.next(op.ix());
        storages[at] = Storage { op, bytes, lifetime: Lifetime::UntilUsed };
        tensor_storage[t.ix()] = StorageId::new(at);
    }
    for storage in rest {
        storages[filling.next(storage.op.ix())] = storage;
    }
    (storages, filling.into_starts(), tensor_storage)
}

/// Joins items of equal codes. An item with a negative code stays alone.
pub(crate) fn joined(codes: &[i64]) -> Union {
    let mut union = Union::new(codes.len());
    let mut first_of = std::collections::BTreeMap::new();
    for (u, &code) in codes.iter().enumerate().filter(|(_, code)| **code >= 0) {
        union.join(u, *first_of.entry(code).or_insert(u));
    }
    union
}

impl Workload {
    /// A plain graph: every tensor is a storage of its own, no views, no home tensors.
    ///
    /// # Errors
    /// A column of the wrong length; colocated ops with no device type in common.
    pub fn plain(graph: Graph, columns: &Columns<'_>) -> Result<Self, Error> {
        columns.check(&graph)?;
        let n = graph.n_ops();
        let bytes_of = |t: TensorId| {
            if columns.tensor_bytes.is_empty() || graph.is_control(t) {
                0
            } else {
                columns.tensor_bytes[graph.key(t) as usize]
            }
        };
        let tensor_bytes: Vec<u64> = graph.tensors().map(bytes_of).collect();
        let (storages, op_storages, tensor_storage) =
            plain_storages(&graph, &tensor_bytes, columns.output_bytes);
        let numbering = graph.numbering();
        let column = |values: &[u64]| {
            if values.is_empty() { vec![0; n] } else { numbering.by_op(values.to_vec(), 1) }
        };
        let mut allowed = columns.allowed.to_vec();
        let (set_of, sets) = if columns.colocation.is_empty() {
            numbering.sets_of_one(n)
        } else {
            let (set_of, sets) = joined(columns.colocation).sets(n);
            if !allowed.is_empty() {
                crate::colocate::share_allowed(&sets, &mut allowed)?;
            }
            numbering.sets(set_of, sets)
        };
        let allowed = if allowed.is_empty() { vec![ANY_TYPE; n] } else { numbering.by_op(allowed, 1) };
        // An op that is alone in its set decides for itself.
        let lead = if sets.n_rows() == n {
            graph.ops().collect()
        } else {
            crate::colocate::leads(&graph, &set_of, &sets, |_| None, &allowed)
        };
        let mut made = Self {
            tensor_bytes,
            tensor_storage,
            storages,
            op_storages,
            resident: column(columns.resident),
            workspace: column(columns.workspace),
            set_of,
            sets,
            allowed,
            lead,
            collectives: Collectives::default(),
            graph,
        };
        made.collectives = Collectives::of(&made.graph, columns.members, |op| made.sent(op))?;
        Ok(made)
    }

    /// Bytes of the tensors with data that an op reads, each once, and bytes that it makes: what a
    /// member of a collective brings and gets.
    pub(crate) fn sent(&self, op: OpId) -> (u64, u64) {
        let read = self.graph.inputs(op).iter().chain(self.graph.pulls(op));
        let read = read.fold(0u64, |sum, t| sum.saturating_add(self.tensor_bytes[t.ix()]));
        (read, self.output_bytes(op))
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.graph.n_ops()
    }

    /// The storages an op allocates.
    #[inline(always)]
    pub fn storages_of(&self, op: OpId) -> &[Storage] {
        &self.storages[self.storages_range(op)]
    }

    /// Where in [`Self::storages`] those of an op are.
    #[inline(always)]
    pub fn storages_range(&self, op: OpId) -> std::ops::Range<usize> {
        self.op_storages[op.ix()] as usize..self.op_storages[op.ix() + 1] as usize
    }

    /// Bytes of the storages an op allocates.
    pub fn output_bytes(&self, op: OpId) -> u64 {
        self.storages_of(op).iter().fold(0, |sum, s| s.bytes.saturating_add(sum))
    }

    /// Resident and output bytes per op: what the papers take for its memory.
    pub fn static_bytes(&self) -> Vec<u64> {
        self.graph.ops().map(|u| self.resident[u.ix()].saturating_add(self.output_bytes(u))).collect()
    }

    /// Resident and output bytes of the ops on each device: the static model of memory.
    pub fn static_per_device(&self, placement: &[DeviceId], n_devices: usize) -> Vec<u64> {
        let mut sums = vec![0u64; n_devices];
        for (bytes, device) in self.static_bytes().into_iter().zip(placement) {
            let sum = &mut sums[device.ix()];
            *sum = sum.saturating_add(bytes);
        }
        sums
    }

    /// Seconds per tensor, sent between an average pair of devices.
    pub fn mean_transfers(&self, cluster: &Cluster) -> Vec<f64> {
        let (latency, per_byte) = cluster.mean_link();
        self.tensor_bytes.iter().map(|&bytes| latency + bytes as f64 * per_byte).collect()
    }

    /// Whether an op may run on a device.
    #[inline(always)]
    pub fn allows(&self, op: OpId, cluster: &Cluster, device: DeviceId) -> bool {
        self.allowed[op.ix()] >> cluster.type_of(device) & 1 == 1
    }

    /// Checks that a placement names devices, keeps sets together and obeys allowed types.
    ///
    /// # Errors
    /// The first op, by the user's index, that breaks a rule, with the device's name.
    pub fn check_placement(&self, cluster: &Cluster, placement: &[DeviceId]) -> Result<(), Error> {
        if placement.len() != self.n_ops() {
            return Err(Error::WrongLength {
                argument: "placement",
                got: placement.len(),
                want: self.n_ops(),
                per: "op",
            });
        }
        let is_wrong = |u: &OpId| {
            let device = placement[u.ix()];
            device.ix() >= cluster.n_devices() || !self.allows(*u, cluster, device)
        };
        if let Some(u) = self.graph.ops().filter(is_wrong).min_by_key(|&u| self.graph.index(u)) {
            let device = placement[u.ix()];
            if device.ix() >= cluster.n_devices() {
                let (got, n) = (device.0, cluster.n_devices());
                let reason = format!("device {got} of {n} devices (op {})", self.graph.index(u));
                return Err(Error::BadArgument { argument: "placement", reason });
            }
            return Err(Error::ForbiddenDevice {
                op: u.into(),
                device: cluster.name(device).to_owned(),
                device_type: cluster.types()[cluster.type_of(device)].clone(),
            });
        }
        for members in (0..self.sets.n_rows()).map(|s| self.sets.row(s)).filter(|m| m.len() > 1) {
            let (first, device) = (members[0], placement[members[0].ix()]);
            if let Some(&second) = members.iter().find(|m| placement[m.ix()] != device) {
                return Err(Error::SplitColocation {
                    first: first.into(),
                    second: second.into(),
                    first_device: cluster.name(device).to_owned(),
                    second_device: cluster.name(placement[second.ix()]).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The clock on which every schedule and every sum of costs of this workload can be counted:
    /// all work, and each tensor sent to each of its readers, one after another.
    ///
    /// # Errors
    /// Times that add up to more than can be counted.
    pub fn clock(&self, times: &Times, cluster: &Cluster) -> Result<Clock, Error> {
        let (latency, inverse) = cluster.slowest_send();
        let work = times.slowest(self).sum::<f64>() + times.dispatch.iter().sum::<f64>();
        let sent = |t: TensorId| {
            let readers = self.graph.consumers(t).len() as f64;
            (latency + self.tensor_bytes[t.ix()] as f64 * inverse) * readers
        };
        let together = self.collectives.all().iter().enumerate().map(|(c, collective)| {
            let once = cluster.longest_collective(self.collectives.members(c).len(), collective.bytes);
            once * collective.runs as f64
        });
        Clock::for_horizon(work + self.graph.tensors().map(sent).sum::<f64>() + together.sum::<f64>())
    }
}

/// Seconds of compute per op and device type, row-major, and of the launch of each op.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    n_types: usize,
    seconds: Vec<f64>,
    /// Empty where launches take no time.
    dispatch: Vec<f64>,
}

impl Times {
    /// Checks a matrix of `n_ops` rows.
    ///
    /// # Errors
    /// A wrong shape; a value that is NaN, infinite or negative.
    pub fn new(n_ops: usize, n_types: usize, seconds: Vec<f64>) -> Result<Self, Error> {
        if seconds.len() != n_ops * n_types {
            return Err(Error::WrongLength {
                argument: "time",
                got: seconds.len(),
                want: n_ops * n_types,
                per: "op and device type",
            });
        }
        if let Some(i) = first_wrong(&seconds, is_no_time) {
            return Err(Error::BadValue {
                argument: "time",
                op: OpId::new(i / n_types).into(),
                value: seconds[i],
            });
        }
        Ok(Self { n_types, seconds, dispatch: Vec::new() })
    }

    /// The same with seconds that the launch of each op keeps its host; where all are 0, launches take
    /// no time.
    ///
    /// # Errors
    /// A wrong length; a value that is NaN, infinite or negative.
    pub fn with_dispatch(self, dispatch: Vec<f64>) -> Result<Self, Error> {
        let (argument, got, n) = ("dispatch", dispatch.len(), self.seconds.len() / self.n_types.max(1));
        if got != n {
            return Err(Error::WrongLength { argument, got, want: n, per: "op" });
        }
        if let Some(i) = first_wrong(&dispatch, is_no_time) {
            return Err(Error::BadValue { argument, op: OpId::new(i).into(), value: dispatch[i] });
        }
        let is_free = dispatch.iter().all(|&seconds| seconds == 0.0);
        Ok(Self { dispatch: if is_free { Vec::new() } else { dispatch }, ..self })
    }

    /// Brings rows from the user's indices into the order of ops.
    #[must_use]
    pub fn numbered(self, numbering: &Numbering) -> Self {
        let dispatch = match self.dispatch.len() {
            0 => Vec::new(),
            _ => numbering.by_op(self.dispatch, 1),
        };
        Self { seconds: numbering.by_op(self.seconds, self.n_types), dispatch, ..self }
    }

    /// Seconds that the launch of each op keeps its host; empty where launches take no time.
    pub fn dispatch(&self) -> &[f64] {
        &self.dispatch
    }

    /// Seconds per op and device type, row-major.
    pub fn matrix(&self) -> &[f64] {
        &self.seconds
    }

    /// Number of device types.
    pub fn n_types(&self) -> usize {
        self.n_types
    }

    /// Seconds of an op on a device type.
    #[inline(always)]
    pub fn seconds(&self, op: OpId, device_type: usize) -> f64 {
        self.seconds[op.ix() * self.n_types + device_type]
    }

    /// Per op, its time on the slowest type it may use.
    fn slowest(&self, work: &Workload) -> impl Iterator<Item = f64> {
        let allowed = |u: OpId, k: &usize| work.allowed[u.ix()] >> k & 1 == 1;
        work.graph.ops().map(move |u| {
            (0..self.n_types).filter(|k| allowed(u, k)).map(|k| self.seconds(u, k)).fold(0.0, f64::max)
        })
    }

    /// Checks that there is a column per device type of a cluster.
    ///
    /// # Errors
    /// Another number of columns.
    pub fn check_types(&self, cluster: &Cluster) -> Result<(), Error> {
        let (got, want) = (self.n_types, cluster.types().len());
        if got == want {
            Ok(())
        } else {
            Err(Error::WrongLength { argument: "time", got, want, per: "device type" })
        }
    }

    /// Ticks per op and device type, row-major.
    pub fn ticks(&self, clock: Clock) -> Vec<Ticks> {
        clock.ticks_of(&self.seconds)
    }

    /// Mean over the devices an op may run on: the time that orders and levels count.
    pub fn mean(&self, work: &Workload, cluster: &Cluster) -> Vec<f64> {
        let counts = cluster.type_counts();
        let mean_of = |u: OpId| {
            let (mut sum, mut count) = (0.0, 0);
            for (k, &devices) in counts.iter().enumerate() {
                if work.allowed[u.ix()] >> k & 1 == 1 {
                    sum += self.seconds(u, k) * devices as f64;
                    count += devices;
                }
            }
            if count == 0 { 0.0 } else { sum / count as f64 }
        };
        work.graph.ops().map(mean_of).collect()
    }
}
