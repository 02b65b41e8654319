//! What kinds of collectives there are, and measured times of them, which stand above what the links
//! of a cluster say.
//!
//! A table has the times of one kind among so many devices of so many machines, for several numbers of
//! bytes. Between two numbers of bytes times lie on a line; below the least number they are those of
//! the least; above the most they go on as between the last two. Between tables of two numbers of
//! devices they lie on a line as well.

/// What a collective does with its members' tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Every member has a tensor of n bytes and gets the sum of all.
    AllReduce,
    /// Every member has a tensor of n bytes and gets its part of the sum.
    ReduceScatter,
    /// Every member has a part and gets all parts, n bytes.
    AllGather,
    /// Every member has a part of n bytes in all, and gets a piece of every other member's part.
    AllToAll,
    /// One member has a tensor of n bytes and every member gets it.
    Broadcast,
}

impl Kind {
    /// Every kind by its name.
    pub const NAMED: [(&'static str, Self); 5] = [
        ("all_reduce", Self::AllReduce),
        ("reduce_scatter", Self::ReduceScatter),
        ("all_gather", Self::AllGather),
        ("all_to_all", Self::AllToAll),
        ("broadcast", Self::Broadcast),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Times of one kind of collective among one number of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What was measured.
    pub kind: Kind,
    /// Machines that took part, as many devices of each.
    pub machines: usize,
    /// Devices that took part.
    pub devices: usize,
    /// Bytes of the whole tensor, and seconds; bytes ascend.
    pub points: Vec<(u64, f64)>,
}

impl Table {
    /// The reason why a table cannot be used, if there is one.
    pub fn fault(&self) -> Option<String> {
        let Self { machines, devices, points, .. } = self;
        if *devices < 2 || *machines < 1 || devices % machines != 0 {
            return Some(format!(
                "{devices} devices on {machines} machines: wants as many on each, 2 or more"
            ));
        }
        if points.is_empty() {
            return Some("it has no bytes and seconds".to_owned());
        }
        if !points.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Some("its bytes do not ascend".to_owned());
        }
        let bad = points.iter().find(|(_, seconds)| !(0.0..1e6).contains(seconds));
        bad.map(|(bytes, seconds)| format!("{seconds} s for {bytes} bytes"))
    }

    /// Seconds for so many bytes.
    pub fn seconds(&self, bytes: u64) -> f64 {
        let after = self.points.partition_point(|(b, _)| *b < bytes);
        let last = self.points.len() - 1;
        if after == 0 || last == 0 {
            return self.points[0].1;
        }
        let ((b0, s0), (b1, s1)) = (self.points[after.min(last) - 1], self.points[after.min(last)]);
        (s0 + (s1 - s0) * (bytes - b0) as f64 / (b1 - b0) as f64).max(0.0)
    }
}

/// Seconds of a collective among `devices` devices, evenly on `machines` machines; none where no
/// tables speak of it.
pub fn seconds(tables: &[Table], kind: Kind, machines: usize, devices: usize, bytes: u64) -> Option<f64> {
    let speaks = |t: &&Table| t.kind == kind && t.machines == machines;
    let below = tables.iter().filter(speaks).filter(|t| t.devices <= devices).max_by_key(|t| t.devices)?;
    let above = tables.iter().filter(speaks).filter(|t| t.devices >= devices).min_by_key(|t| t.devices)?;
    let (least, most) = (below.seconds(bytes), above.seconds(bytes));
    if below.devices == above.devices {
        return Some(least);
    }
    let along = (devices - below.devices) as f64 / (above.devices - below.devices) as f64;
    Some(least + (most - least) * along)
}
