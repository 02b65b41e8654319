//! The direct links of a cluster, their channels, and the paths between devices that none joins.
//!
//! A row of links joins every device of one list to every device of another. All that is kept per link is
//! a few numbers: a name is made only for a channel that a row names.

use std::collections::BTreeMap;

use super::{Device, Links, Route};
use crate::csr::Csr;
use crate::error::ClusterError;
use crate::ids::{ChannelId, DeviceId};

/// Stands for "no link".
const NONE: u32 = u32::MAX;

/// What a channel is called.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    /// By a row of links: the index of a text.
    Given(u32),
    /// After the ends of the link that alone has it: `from->to`.
    Own(DeviceId, DeviceId),
}

/// The channels' names, in order of first use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Names {
    names: Vec<Name>,
    texts: Vec<String>,
}

impl Names {
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn text(&self, channel: ChannelId, devices: &[Device]) -> String {
        match self.names[channel.ix()] {
            Name::Given(text) => self.texts[text as usize].clone(),
            Name::Own(from, to) => format!("{}->{}", devices[from.ix()].name, devices[to.ix()].name),
        }
    }

    fn push(&mut self, name: Name) -> ChannelId {
        self.names.push(name);
        ChannelId::new(self.names.len() - 1)
    }
}

/// The direct links, numbered in the order in which they are given.
pub(super) struct Wiring<'a> {
    n: usize,
    rows: &'a [Links],
    /// Per ordered pair of devices, row-major, its link.
    link: Vec<u32>,
    /// Per link, its row.
    row: Vec<u32>,
    /// Per link, the channels that it holds.
    held: Csr<ChannelId>,
}

impl<'a> Wiring<'a> {
    /// Numbers links and channels. O(D^2 + L log C) for D devices, L links and C channels.
    pub fn new(
        devices: &[Device],
        index: &BTreeMap<&str, u32>,
        rows: &'a [Links],
    ) -> Result<(Self, Names), ClusterError> {
        let mut numbering = Numbering::new(devices, index);
        for (i, row) in rows.iter().enumerate() {
            numbering.add(i, row)?;
        }
        let Numbering { link, row, starts, held, names, .. } = numbering;
        Ok((Self { n: devices.len(), rows, link, row, held: Csr::from_parts(starts, held) }, names))
    }

    pub fn n_devices(&self) -> usize {
        self.n
    }

    /// The row of the link between two devices.
    fn link(&self, from: usize, to: usize) -> Option<&'a Links> {
        let link = self.link[from * self.n + to];
        (link != NONE).then(|| &self.rows[self.row[link as usize] as usize])
    }

    /// The route along a path of devices. Appends the channels on the path, each once, to
    /// `channels`. `is_new` says whether a channel is seen for the first time on this path.
    pub fn route(
        &self,
        path: &[usize],
        channels: &mut Vec<ChannelId>,
        mut is_new: impl FnMut(ChannelId) -> bool,
    ) -> Route {
        let mut route = Route { latency: 0.0, bandwidth: f64::INFINITY };
        for hop in path.windows(2) {
            let link = self.link[hop[0] * self.n + hop[1]] as usize;
            let row = &self.rows[self.row[link] as usize];
            route.latency += row.latency;
            route.bandwidth = route.bandwidth.min(row.bandwidth);
            let held = self.held.row(link).iter().copied();
            channels.extend(held.filter(|&c| path.len() == 2 || is_new(c)));
        }
        route
    }

    /// Largest bottleneck bandwidth from one device to each; 0 where no links lead. O(D^2).
    fn widths(&self, from: usize) -> Vec<f64> {
        let mut width = vec![0.0; self.n];
        let mut done = vec![false; self.n];
        width[from] = f64::INFINITY;
        loop {
            let mut best: Option<usize> = None;
            for d in 0..self.n {
                if !done[d] && width[d] > 0.0 && best.is_none_or(|b| width[d] > width[b]) {
                    best = Some(d);
                }
            }
            let Some(u) = best else { return width };
            done[u] = true;
            for v in 0..self.n {
                if let Some(link) = self.link(u, v) {
                    width[v] = width[v].max(width[u].min(link.bandwidth));
                }
            }
        }
    }

    /// Breadth-first parents over links at least `width` wide; smaller indices are found first.
    fn parents(&self, from: usize, width: f64) -> Vec<usize> {
        let mut parent = vec![usize::MAX; self.n];
        parent[from] = from;
        let mut queue = vec![from];
        let mut head = 0;
        while let Some(&u) = queue.get(head) {
            head += 1;
            for (v, parent) in parent.iter_mut().enumerate() {
                if *parent == usize::MAX && self.link(u, v).is_some_and(|l| l.bandwidth >= width) {
                    *parent = u;
                    queue.push(v);
                }
            }
        }
        parent
    }
}

/// Paths from one device. What they need is searched when the first device without a link is asked for.
pub(super) struct Paths<'a> {
    wiring: &'a Wiring<'a>,
    from: usize,
    widths: Option<Vec<f64>>,
    /// Breadth-first parents per width: one search serves all devices of one width.
    searched: Vec<(f64, Vec<usize>)>,
}

impl<'a> Paths<'a> {
    pub fn new(wiring: &'a Wiring<'a>, from: usize) -> Self {
        Self { wiring, from, widths: None, searched: Vec::new() }
    }

    /// The path to a device, both ends included, into `path`; false where no links lead.
    pub fn find(&mut self, to: usize, path: &mut Vec<usize>) -> bool {
        path.clear();
        path.push(to);
        if to != self.from && self.wiring.link(self.from, to).is_none() {
            let width = self.widths.get_or_insert_with(|| self.wiring.widths(self.from))[to];
            if width == 0.0 {
                return false;
            }
            let known = self.searched.iter().position(|(w, _)| *w == width).unwrap_or_else(|| {
                self.searched.push((width, self.wiring.parents(self.from, width)));
                self.searched.len() - 1
            });
            let parents = &self.searched[known].1;
            let before = |&at: &usize| Some(parents[at]).filter(|&at| at != self.from);
            path.extend(std::iter::successors(before(&to), before));
        }
        if to != self.from {
            path.push(self.from);
        }
        path.reverse();
        true
    }
}

/// A channel's name with the ends of links left open, and the channels made of it so far.
struct Template<'a> {
    text: &'a str,
    has_from: bool,
    has_to: bool,
    /// Per pair of ends that the name tells apart.
    made: Vec<ChannelId>,
}

impl<'a> Template<'a> {
    fn new(text: &'a str, n_from: usize, n_to: usize) -> Self {
        let (has_from, has_to) = (text.contains("{from}"), text.contains("{to}"));
        let n = if has_from { n_from } else { 1 } * if has_to { n_to } else { 1 };
        Self { text, has_from, has_to, made: vec![ChannelId::NONE; n] }
    }
}

/// Links and channels while they are numbered.
struct Numbering<'a> {
    devices: &'a [Device],
    index: &'a BTreeMap<&'a str, u32>,
    link: Vec<u32>,
    row: Vec<u32>,
    starts: Vec<u32>,
    held: Vec<ChannelId>,
    names: Names,
    given: BTreeMap<String, ChannelId>,
    /// Channels that a row calls by the name that the own channel of a link has.
    claimed: BTreeMap<(u32, u32), ChannelId>,
}

impl<'a> Numbering<'a> {
    fn new(devices: &'a [Device], index: &'a BTreeMap<&'a str, u32>) -> Self {
        Self {
            devices,
            index,
            link: vec![NONE; devices.len() * devices.len()],
            row: Vec::new(),
            starts: vec![0],
            held: Vec::new(),
            names: Names::default(),
            given: BTreeMap::new(),
            claimed: BTreeMap::new(),
        }
    }

    fn add(&mut self, i: usize, row: &Links) -> Result<(), ClusterError> {
        let (from, to) = (self.ends(i, "from", &row.from)?, self.ends(i, "to", &row.to)?);
        let is_one = from.len() == 1 && to.len() == 1;
        let mut templates: Vec<Template<'_>> =
            row.channels.iter().map(|text| Template::new(text, from.len(), to.len())).collect();
        if let (Some(&a), Some(&b)) = (from.first(), to.first()) {
            if is_one && a == b {
                return Err(ClusterError::SelfLink(row.from[0].clone()));
            }
            check_figures(row)?;
        }
        for (x, &a) in from.iter().enumerate() {
            for (y, &b) in to.iter().enumerate().filter(|&(_, &b)| b != a) {
                let pair = a as usize * self.devices.len() + b as usize;
                if self.link[pair] != NONE {
                    let (from, to) = (row.from[x].clone(), row.to[y].clone());
                    return Err(ClusterError::DuplicateLink { from, to });
                }
                self.hold(&mut templates, (x, y, to.len()), (a, b));
                self.link[pair] = self.row.len() as u32;
                self.row.push(i as u32);
                self.starts.push(self.held.len() as u32);
            }
        }
        Ok(())
    }

    /// The devices that one end of a row names.
    fn ends(&self, link: usize, end: &'static str, names: &[String]) -> Result<Vec<u32>, ClusterError> {
        let mut seen = vec![false; self.devices.len()];
        let find = |name: &String| {
            let known = self.index.get(name.as_str()).copied();
            let id = known.ok_or_else(|| ClusterError::UnknownDevice { link, end, name: name.clone() })?;
            if std::mem::replace(&mut seen[id as usize], true) {
                return Err(ClusterError::RepeatedDevice { link, end, name: name.clone() });
            }
            Ok(id)
        };
        names.iter().map(find).collect()
    }

    /// Appends the channels of one link: `at` are its ends' positions in the row and the number of
    /// destinations, `ends` its devices.
    fn hold(&mut self, templates: &mut [Template<'_>], at: (usize, usize, usize), ends: (u32, u32)) {
        if templates.is_empty() {
            let own = self.own(ends);
            self.held.push(own);
            return;
        }
        let first = self.held.len();
        for template in templates {
            let (x, y, n_to) = at;
            let y = if template.has_to { y } else { 0 };
            let x = if template.has_from { x } else { 0 };
            let slot = x * if template.has_to { n_to } else { 1 } + y;
            if template.made[slot].is_none() {
                let (from, to) = (&self.devices[ends.0 as usize].name, &self.devices[ends.1 as usize].name);
                template.made[slot] = self.named(template.text.replace("{from}", from).replace("{to}", to));
            }
            if !self.held[first..].contains(&template.made[slot]) {
                self.held.push(template.made[slot]);
            }
        }
    }

    /// The channel that a link alone has, unless a row calls one by its name.
    fn own(&mut self, (from, to): (u32, u32)) -> ChannelId {
        let claimed = self.claimed.get(&(from, to)).copied();
        claimed.unwrap_or_else(|| self.names.push(Name::Own(DeviceId(from), DeviceId(to))))
    }

    /// The channel of a name, which may be a link's own.
    fn named(&mut self, text: String) -> ChannelId {
        if let Some(&known) = self.given.get(&text) {
            return known;
        }
        let arrows = text.match_indices("->").map(|(at, _)| (&text[..at], &text[at + 2..]));
        let ends = arrows.filter_map(|(a, b)| Some((*self.index.get(a)?, *self.index.get(b)?)));
        let ends: Vec<(u32, u32)> = ends.collect();
        let channel = ends.iter().find_map(|&ends| self.made_own(ends)).unwrap_or_else(|| {
            self.names.texts.push(text.clone());
            self.names.push(Name::Given(self.names.texts.len() as u32 - 1))
        });
        self.claimed.extend(ends.into_iter().map(|ends| (ends, channel)));
        self.given.insert(text, channel);
        channel
    }

    /// The own channel of a link that has been numbered already.
    fn made_own(&self, (from, to): (u32, u32)) -> Option<ChannelId> {
        let link = self.link[from as usize * self.devices.len() + to as usize];
        let channel = self.held[*self.starts.get(link as usize)? as usize];
        (self.names.names[channel.ix()] == Name::Own(DeviceId(from), DeviceId(to))).then_some(channel)
    }
}

/// Checks bandwidth and latency of a row that has links.
fn check_figures(row: &Links) -> Result<(), ClusterError> {
    let ends = || {
        let to = row.to.iter().find(|to| **to != row.from[0]).unwrap_or(&row.to[0]);
        (row.from[0].clone(), to.clone())
    };
    // 1 / bandwidth is infinite for a subnormal bandwidth.
    if !(row.bandwidth > 0.0 && row.bandwidth.is_normal()) {
        let (from, to) = ends();
        return Err(ClusterError::BadBandwidth { from, to, bandwidth: row.bandwidth });
    }
    if !(row.latency >= 0.0 && row.latency.is_finite()) {
        let (from, to) = ends();
        return Err(ClusterError::BadLatency { from, to, latency: row.latency });
    }
    Ok(())
}
