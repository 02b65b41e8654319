//! Everything that can be wrong with an input, as one enum.
//!
//! Algorithms know ops and devices by index. The caller, who knows the names, fills them in with
//! [`Error::with_names`] before a person reads the message.

use std::fmt;

use thiserror::Error as ThisError;

use crate::ids::{DeviceId, OpId};

/// An op in a message: its name once known, else its index.
#[derive(Clone, Debug, PartialEq)]
pub struct OpRef {
    /// The op's index.
    pub id: OpId,
    /// The op's name, once somebody has filled it in.
    pub name: Option<String>,
}

impl From<OpId> for OpRef {
    fn from(id: OpId) -> Self {
        Self { id, name: None }
    }
}

impl fmt::Display for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name:?}"),
            None => write!(f, "op {}", self.id.0),
        }
    }
}

/// A number of bytes in a message: exact, and in a unit for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut scaled = self.0 as f64;
        let mut unit = None;
        for name in UNITS {
            if scaled < 1024.0 {
                break;
            }
            scaled /= 1024.0;
            unit = Some(name);
        }
        match unit {
            None => write!(f, "{}", Counted(self.0, "byte")),
            Some(unit) => write!(f, "{scaled:.2} {unit} ({} bytes)", self.0),
        }
    }
}

/// How many there are of something, in a message: "1 op", "2 ops".
pub struct Counted<'a, N>(pub N, pub &'a str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        write!(f, "{count} {what}{}", if *count == N::from(1) { "" } else { "s" })
    }
}

/// A list of ops in a message, shortened when long.
#[derive(Clone, Debug, PartialEq)]
pub struct OpRefs(pub Vec<OpRef>);

impl FromIterator<OpId> for OpRefs {
    fn from_iter<I: IntoIterator<Item = OpId>>(ids: I) -> Self {
        Self(ids.into_iter().map(OpRef::from).collect())
    }
}

impl fmt::Display for OpRefs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 12;
        for (i, op) in self.0.iter().take(SHOWN).enumerate() {
            if i > 0 {
                f.write_str(" -> ")?;
            }
            write!(f, "{op}")?;
        }
        if self.0.len() > SHOWN {
            write!(f, " -> ... ({} more)", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// What is wrong with an input.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum Error {
    /// A graph without ops.
    #[error("the graph has no ops")]
    EmptyGraph,
    /// More of something than 32-bit indices can hold.
    #[error("{count} {what}: at most {limit} are supported")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many were given.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A number that asks for more memory than there is.
    #[error("{argument} is {count}: that would take {} of memory, and there is no room for it", Bytes(*.bytes))]
    NoRoom {
        /// The argument's name.
        argument: &'static str,
        /// Its value.
        count: usize,
        /// What it would take.
        bytes: u64,
    },
    /// A column of the wrong length.
    #[error("{argument} has {} where {want} are wanted (one per {per})", Counted(*.got, "value"))]
    WrongLength {
        /// The argument's name.
        argument: &'static str,
        /// Its length.
        got: usize,
        /// The right length.
        want: usize,
        /// What one value stands for.
        per: &'static str,
    },
    /// An edge that starts or ends outside the graph.
    #[error("edge {edge} has {end} {value}, but ops are numbered 0 to {last}: a dangling edge")]
    DanglingEdge {
        /// The edge's index.
        edge: usize,
        /// "src" or "dst".
        end: &'static str,
        /// The bad value.
        value: i64,
        /// The last op's index.
        last: usize,
    },
    /// A tensor id out of range.
    #[error(
        "edge {edge} carries tensor {value}: ids must be -1 (control edge) or 0 to {last} \
         (fewer than ops + edges); renumber them"
    )]
    BadTensorId {
        /// The edge's index.
        edge: usize,
        /// The bad value.
        value: i64,
        /// The largest id allowed.
        last: usize,
    },
    /// An edge from an op to itself.
    #[error("edge {edge} joins {op} to itself")]
    SelfLoop {
        /// The edge's index.
        edge: usize,
        /// The op.
        op: OpRef,
    },
    /// A directed cycle.
    #[error("the graph has a cycle: {0}")]
    Cycle(OpRefs),
    /// One tensor id with two producers.
    #[error("tensor {tensor} has two producers, {first} and {second}: give each its own id")]
    TwoProducers {
        /// The tensor's id.
        tensor: u32,
        /// One producer.
        first: OpRef,
        /// The other.
        second: OpRef,
    },
    /// One tensor with two sizes.
    #[error("tensor {tensor} of {op} has {} on one edge and {second} on another", Counted(*.first, "byte"))]
    TwoSizes {
        /// The tensor's id.
        tensor: i64,
        /// Its producer.
        op: OpRef,
        /// One size.
        first: u64,
        /// The other.
        second: u64,
    },
    /// Two ops of one name.
    #[error("two ops are named {name:?} (indices {first} and {second}): names must be unique")]
    DuplicateName {
        /// The name.
        name: String,
        /// The first op that has it.
        first: u32,
        /// The second.
        second: u32,
    },
    /// A value that is NaN, infinite or negative.
    #[error("{argument} of {op} is {value}: it must be finite and not negative")]
    BadValue {
        /// The column.
        argument: &'static str,
        /// The op.
        op: OpRef,
        /// The value.
        value: f64,
    },
    /// `alias_of` that points outside the graph, to the op itself or in a circle.
    #[error("{op} has alias_of {value}, which is not another op of the graph, or leads back to it")]
    BadAlias {
        /// The op.
        op: OpRef,
        /// The bad value.
        value: i64,
    },
    /// Control edges through a view would multiply beyond reason.
    #[error(
        "control edges into and out of the view {op} would become {count} edges: \
         make it an op of its own (view = 0)"
    )]
    ControlFanout {
        /// The view.
        op: OpRef,
        /// How many edges there would be.
        count: usize,
    },
    /// Ops that must share a device but are allowed on no common device type.
    #[error(
        "{first} and {second} must share a device (colocation, or one is placed where the other is), but no \
         device type allows both"
    )]
    NoCommonType {
        /// One op.
        first: OpRef,
        /// The other.
        second: OpRef,
    },
    /// Times that overflow.
    #[error("the times of ops and transfers add up to {seconds:e} s: too long to be counted")]
    HorizonTooLong {
        /// The sum.
        seconds: f64,
    },
    /// An argument that is no permutation or no grouping.
    #[error("{argument}: {reason}")]
    BadArgument {
        /// The argument's name.
        argument: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Members of one collective that do two things.
    #[error("{first} and {second} are members of one collective, but of two kinds")]
    TwoKinds {
        /// A member.
        first: OpRef,
        /// A member of another kind.
        second: OpRef,
    },
    /// A member of a collective that is a view, a placeholder or no op of its own.
    #[error("{op} is a member of a collective: it can be no view and no placeholder")]
    BadMember {
        /// The op.
        op: OpRef,
    },
    /// Collectives that wait for each other.
    #[error("collectives wait for each other, members taken for one op: {0}")]
    CollectiveDeadlock(OpRefs),
    /// A quotient that is not acyclic.
    #[error("merging these groups makes a cycle: {0}")]
    CyclicGroups(OpRefs),
    /// An op that follows one which cannot decide for it.
    #[error("lead[{}] is {}: {reason}", op.id.0, follows.id.0)]
    BadLead {
        /// The op.
        op: OpRef,
        /// The op that it follows.
        follows: OpRef,
        /// What is wrong with that.
        reason: &'static str,
    },
    /// An op that is kept from every device type.
    #[error("masks[{}] leaves the op no device type", op.id.0)]
    NoTypeLeft {
        /// The op.
        op: OpRef,
    },
    /// An op on a device whose type it does not allow.
    #[error("{op} may not run on {device} (device type {device_type})")]
    ForbiddenDevice {
        /// The op.
        op: OpRef,
        /// The device's name.
        device: String,
        /// Its type.
        device_type: String,
    },
    /// A set of colocated ops on two devices.
    #[error(
        "{first} and {second} must share a device (colocation) but are on {first_device} and {second_device}"
    )]
    SplitColocation {
        /// One op.
        first: OpRef,
        /// The other.
        second: OpRef,
        /// The first op's device.
        first_device: String,
        /// The second op's device.
        second_device: String,
    },
    /// A fixed sequence that can never run.
    #[error("the fixed order can never run; these ops block each other: {0}")]
    Deadlock(OpRefs),
    /// An op that fits on no device.
    #[error(
        "{op}{} needs {}; the most that is free on a device it may use is {}, on {device}: {} short",
        if *.members > 1 { format!(", with the {} after it,", Counted(*.members - 1, "op")) } else { String::new() },
        Bytes(*.needed), Bytes(*.free), Bytes(.needed - .free)
    )]
    DoesNotFit {
        /// The op.
        op: OpRef,
        /// Number of ops that are placed together, this one included.
        members: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes free on the best device.
        free: u64,
        /// That device's name.
        device: String,
        /// That device.
        device_id: DeviceId,
    },
    /// No device of a type the op allows.
    #[error("{op} is allowed on no device of this cluster")]
    NoAllowedDevice {
        /// The op.
        op: OpRef,
    },
    /// Labels that all have a forbidden choice; the message names it.
    #[error("no labelling: {0}")]
    NoLabelling(String),
    /// Something wrong with a cluster; the message names it.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
}

/// What is wrong with a cluster.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum ClusterError {
    /// No devices.
    #[error("the cluster has no devices")]
    Empty,
    /// Too many device types.
    #[error("{0} device types: at most 64 are supported")]
    TooManyTypes(usize),
    /// Too many devices.
    #[error("{count} devices: at most {limit} are supported")]
    TooManyDevices {
        /// How many.
        count: usize,
        /// The most that are supported.
        limit: usize,
    },
    /// Measured times of collectives that cannot be used.
    #[error("times of {kind}: {reason}")]
    BadTable {
        /// The kind of collective.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A cost of sending of no type, or out of range.
    #[error(
        "send cost of type {type_name:?}: wants a type of the cluster, a latency (here {latency} s) that is \
         finite and not negative, and a bandwidth (here {bandwidth:?} B/s) that is positive and finite"
    )]
    BadSendCost {
        /// The type's name.
        type_name: String,
        /// Seconds per message.
        latency: f64,
        /// Bytes per second.
        bandwidth: f64,
    },
    /// Two devices of one name.
    #[error("two devices are named {0:?}")]
    DuplicateDevice(String),
    /// Two links between one pair.
    #[error("two links go from {from:?} to {to:?}")]
    DuplicateLink {
        /// Source device.
        from: String,
        /// Destination device.
        to: String,
    },
    /// A link that names no device.
    #[error("link {link} has {end} {name:?}, which is no device of the cluster")]
    UnknownDevice {
        /// The link's index.
        link: usize,
        /// "from" or "to".
        end: &'static str,
        /// The bad name.
        name: String,
    },
    /// A row of links that names a device twice at one end.
    #[error("link {link} has {end} {name:?} twice")]
    RepeatedDevice {
        /// The link's index.
        link: usize,
        /// "from" or "to".
        end: &'static str,
        /// The name.
        name: String,
    },
    /// A link from a device to itself.
    #[error("a link joins device {0:?} to itself")]
    SelfLink(String),
    /// A bandwidth that is not positive, infinite, or subnormal.
    #[error(
        "the link from {from:?} to {to:?} has bandwidth {bandwidth:?} B/s: it must be positive and finite, \
         and at least 2.3e-308"
    )]
    BadBandwidth {
        /// Source device.
        from: String,
        /// Destination device.
        to: String,
        /// The bad value.
        bandwidth: f64,
    },
    /// A latency that is not a time.
    #[error("the link from {from:?} to {to:?} has latency {latency} s: it must be finite and not negative")]
    BadLatency {
        /// Source device.
        from: String,
        /// Destination device.
        to: String,
        /// The bad value.
        latency: f64,
    },
    /// Routes over too many links.
    #[error(
        "the routes between {devices} devices hold more than {limit} channels in all: join more of the \
         devices by links of their own"
    )]
    LongRoutes {
        /// How many devices there are.
        devices: usize,
        /// The most channels that are supported.
        limit: usize,
    },
    /// A pair of devices that no route joins.
    #[error(
        "no link or chain of links leads from {from:?} to {to:?}; a link leads one way: the [[link]] that \
         joins two devices both ways says\nfrom = [{to:?}, {from:?}]\nto = [{to:?}, {from:?}]"
    )]
    Unreachable {
        /// Source device.
        from: String,
        /// Destination device.
        to: String,
    },
}

impl Error {
    /// The same error with ops called by name.
    #[must_use]
    pub fn with_names(mut self, name: impl Fn(OpId) -> Option<String>) -> Self {
        for op in self.op_refs() {
            if op.name.is_none() {
                op.name = name(op.id);
            }
        }
        self
    }

    /// The same error with other indices for the ops.
    #[must_use]
    pub fn with_indices(mut self, index: impl Fn(OpId) -> u32) -> Self {
        for op in self.op_refs() {
            op.id = OpId(index(op.id));
        }
        self
    }

    fn op_refs(&mut self) -> Vec<&mut OpRef> {
        match self {
            Self::SelfLoop { op, .. }
            | Self::TwoSizes { op, .. }
            | Self::BadValue { op, .. }
            | Self::BadAlias { op, .. }
            | Self::ControlFanout { op, .. }
            | Self::ForbiddenDevice { op, .. }
            | Self::DoesNotFit { op, .. }
            | Self::BadMember { op }
            | Self::NoTypeLeft { op }
            | Self::NoAllowedDevice { op } => vec![op],
            Self::BadLead { op, follows, .. } => vec![op, follows],
            Self::TwoProducers { first, second, .. }
            | Self::NoCommonType { first, second }
            | Self::TwoKinds { first, second }
            | Self::SplitColocation { first, second, .. } => vec![first, second],
            Self::Cycle(ops)
            | Self::CyclicGroups(ops)
            | Self::CollectiveDeadlock(ops)
            | Self::Deadlock(ops) => ops.0.iter_mut().collect(),
            Self::EmptyGraph
            | Self::TooMany { .. }
            | Self::NoRoom { .. }
            | Self::WrongLength { .. }
            | Self::DanglingEdge { .. }
            | Self::BadTensorId { .. }
            | Self::DuplicateName { .. }
            | Self::HorizonTooLong { .. }
            | Self::BadArgument { .. }
            | Self::NoLabelling(_)
            | Self::Cluster(_) => Vec::new(),
        }
    }
}
