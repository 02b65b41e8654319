//! What kinds of collectives there are, and measured times of them, which stand above what the links
//! of a cluster say.
//!
//! A table has the times of one kind among so many devices of so many machines, for several numbers of
//! bytes. Between two numbers of bytes times lie on a line; below the least number they are those of
//! the least; above the most they go on as between the last two. Between tables of two numbers of
//! devices they lie on a line as well. A part of the time may be the devices' own: while a member sums or
//! copies, its device computes nothing.

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
    /// For each point, the seconds of these for which every member keeps its device busy; empty: none.
    pub busy: Vec<f64>,
}

/// What a collective takes by measured times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of these for which every member keeps its device busy.
    pub busy: f64,
}

impl Table {
    /// The reason why a table cannot be used, if there is one.
    pub fn fault(&self) -> Option<String> {
        let Self { machines, devices, points, busy, .. } = self;
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
        if let Some((bytes, seconds)) = points.iter().find(|(_, seconds)| !(0.0..1e6).contains(seconds)) {
            return Some(format!("{seconds} s for {bytes} bytes"));
        }
        if !busy.is_empty() && busy.len() != points.len() {
            return Some(format!("{} busy seconds for {} numbers of bytes", busy.len(), points.len()));
        }
        let mut each = busy.iter().zip(points);
        let (busy, (bytes, seconds)) = each.find(|(busy, (_, seconds))| !(0.0..=*seconds).contains(*busy))?;
        Some(format!("devices are busy for {busy} s of {seconds} s for {bytes} bytes"))
    }

    /// Lets no point take less than one of fewer bytes: noise in what was measured, and no more.
    pub fn rise(&mut self) {
        for i in 1..self.points.len() {
            self.points[i].1 = self.points[i].1.max(self.points[i - 1].1);
        }
    }

    /// What so many bytes take.
    pub fn taken(&self, bytes: u64) -> Taken {
        let seconds = self.along(bytes, |i| self.points[i].1);
        let busy = if self.busy.is_empty() { 0.0 } else { self.along(bytes, |i| self.busy[i]) };
        Taken { seconds, busy: busy.min(seconds) }
    }

    /// What lies at so many bytes on the lines through the values of points.
    fn along(&self, bytes: u64, value: impl Fn(usize) -> f64) -> f64 {
        let after = self.points.partition_point(|(b, _)| *b < bytes);
        let last = self.points.len() - 1;
        if after == 0 || last == 0 {
            return value(0);
        }
        let (i, j) = (after.min(last) - 1, after.min(last));
        let (b0, b1) = (self.points[i].0, self.points[j].0);
        (value(i) + (value(j) - value(i)) * (bytes - b0) as f64 / (b1 - b0) as f64).max(0.0)
    }
}

/// What a collective takes among `devices` devices, evenly on `machines` machines; none where no tables
/// speak of it.
pub fn taken(tables: &[Table], kind: Kind, machines: usize, devices: usize, bytes: u64) -> Option<Taken> {
    let speaks = |t: &&Table| t.kind == kind && t.machines == machines;
    let below = tables.iter().filter(speaks).filter(|t| t.devices <= devices).max_by_key(|t| t.devices)?;
    let above = tables.iter().filter(speaks).filter(|t| t.devices >= devices).min_by_key(|t| t.devices)?;
    let (least, most) = (below.taken(bytes), above.taken(bytes));
    if below.devices == above.devices {
        return Some(least);
    }
    let along = (devices - below.devices) as f64 / (above.devices - below.devices) as f64;
    let between = |least: f64, most: f64| least + (most - least) * along;
    Some(Taken { seconds: between(least.seconds, most.seconds), busy: between(least.busy, most.busy) })
}
