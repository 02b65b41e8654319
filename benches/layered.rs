//! Seeded generator of layered graphs that look like those of deep networks.
//!
//! Layers are thin most of the time and sometimes wide (log-normal widths). Every op outside the first
//! layer reads one op of the layer before; further edges come from one to four layers back, and a few
//! skip from anywhere earlier. An op has one output tensor, which all its edges carry. Op times are
//! whole microseconds, log-normal around 60 us; tensors are log-normal around 256 KB; a fifth of the
//! ops hold weights.

use loadmaster_core::error::Error;
use loadmaster_core::graph::Graph;
use loadmaster_core::workload::{Columns, Workload};

/// Mean edges per op that are drawn; repeated ones are dropped, which leaves about 1.87.
const DEGREE: f64 = 2.0;

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Number of ops.
    pub n_ops: usize,
    /// Mean transfer time of an edge over mean time of an op.
    pub ccr: f64,
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Mean number of ops per layer.
    pub width: f64,
    /// Share of the edges that skip over many layers.
    pub skip: f64,
    /// Whether ids are permuted; otherwise they are a topological order, as a tracer emits them.
    pub shuffle: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { n_ops: 50_000, ccr: 1.0, seed: 0, width: 8.0, skip: 0.03, shuffle: false }
    }
}

/// A generated graph, in columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Layered {
    /// Number of ops.
    pub n_ops: usize,
    /// Producer per edge.
    pub src: Vec<i64>,
    /// Consumer per edge.
    pub dst: Vec<i64>,
    /// Seconds of compute per op.
    pub op_seconds: Vec<f64>,
    /// Seconds to send the output of each op.
    pub tensor_seconds: Vec<f64>,
    /// Bytes of the output of each op.
    pub tensor_bytes: Vec<u64>,
    /// Bytes of weights per op, 0 for most.
    pub resident_bytes: Vec<u64>,
}

impl Layered {
    /// Draws a graph.
    pub fn new(options: Options) -> Self {
        let Options { n_ops, ccr, seed, width, skip, shuffle } = options;
        let mut random = SplitMix(seed);
        let layers = Layers::new(n_ops, width, &mut random);
        let mut edges = layers.edges(skip, &mut random);
        edges.sort_unstable();
        edges.dedup();

        let micros: Vec<f64> =
            (0..n_ops).map(|_| random.log_normal(60f64.ln(), 1.3).clamp(1.0, 1e4)).collect();
        let bytes: Vec<f64> =
            (0..n_ops).map(|_| random.log_normal(256e3f64.ln(), 1.6).clamp(1e3, 256e6)).collect();
        let weights: Vec<f64> = (0..n_ops)
            .map(|_| if random.unit() < 0.2 { random.log_normal(4e6f64.ln(), 1.0) } else { 0.0 })
            .collect();
        // A tenth of the mean transfer time is latency; the bandwidth gives the rest.
        let mean_micros = ccr * micros.iter().sum::<f64>() / n_ops as f64;
        let mean_bytes = edges.iter().map(|&(u, _)| bytes[u as usize]).sum::<f64>() / edges.len() as f64;
        let send = |b: f64| (mean_micros * (0.1 + 0.9 * b / mean_bytes)).round().max(1.0);

        let id = if shuffle { random.permutation(n_ops) } else { (0..n_ops as u32).collect() };
        let mut old = vec![0usize; n_ops];
        id.iter().enumerate().for_each(|(u, &i)| old[i as usize] = u);
        let end = |u: u32| i64::from(id[u as usize]);
        Self {
            n_ops,
            src: edges.iter().map(|e| end(e.0)).collect(),
            dst: edges.iter().map(|e| end(e.1)).collect(),
            op_seconds: old.iter().map(|&u| micros[u].round().max(1.0) * 1e-6).collect(),
            tensor_seconds: old.iter().map(|&u| send(bytes[u]) * 1e-6).collect(),
            tensor_bytes: old.iter().map(|&u| bytes[u] as u64).collect(),
            resident_bytes: old.iter().map(|&u| weights[u] as u64).collect(),
        }
    }

    /// Number of edges.
    pub fn n_edges(&self) -> usize {
        self.src.len()
    }

    /// Weights and output of each op.
    pub fn static_bytes(&self) -> Vec<u64> {
        self.tensor_bytes.iter().zip(&self.resident_bytes).map(|(t, r)| t + r).collect()
    }

    /// The graph, validated, with ops numbered as they run.
    ///
    /// # Errors
    /// None for a graph with an op: its edges lead from layer to later layer.
    pub fn graph(&self) -> Result<Graph, Error> {
        Graph::numbered(self.n_ops, &self.src, &self.dst, None)
    }

    /// The graph with its bytes, free to be placed anywhere.
    ///
    /// # Errors
    /// Those of [`Self::graph`].
    pub fn workload(&self) -> Result<Workload, Error> {
        let columns = Columns {
            tensor_bytes: &self.tensor_bytes,
            resident: &self.resident_bytes,
            output_bytes: &self.tensor_bytes,
            ..Columns::default()
        };
        Workload::plain(self.graph()?, &columns)
    }
}

/// Ops in layers: layer `l` is `start[l]..start[l + 1]`.
struct Layers {
    start: Vec<u32>,
    of: Vec<u32>,
}

impl Layers {
    fn new(n_ops: usize, width: f64, random: &mut SplitMix) -> Self {
        const SPREAD: f64 = 0.8;
        let mut start = vec![0u32];
        let mut of = Vec::with_capacity(n_ops);
        while of.len() < n_ops {
            let drawn = random.log_normal(width.ln() - 0.5 * SPREAD * SPREAD, SPREAD).round();
            let ops = (drawn.max(1.0) as usize).min(n_ops - of.len());
            of.resize(of.len() + ops, start.len() as u32 - 1);
            start.push(of.len() as u32);
        }
        Self { start, of }
    }

    /// An op of a layer.
    fn pick(&self, layer: u32, random: &mut SplitMix) -> u32 {
        let (from, to) = (self.start[layer as usize], self.start[layer as usize + 1]);
        from + random.below((to - from) as usize) as u32
    }

    /// Edges in no order, some of them twice.
    fn edges(&self, skip: f64, random: &mut SplitMix) -> Vec<(u32, u32)> {
        let n = self.of.len();
        let first = self.start[1] as usize;
        let drawn = (DEGREE * n as f64) as usize;
        let skips = (skip * drawn as f64) as usize;
        let local = (drawn.saturating_sub(skips + n - first) as f64 * 1.02) as usize;
        let mut edges = Vec::with_capacity(drawn + n);
        for v in first as u32..n as u32 {
            edges.push((self.pick(self.of[v as usize] - 1, random), v));
        }
        if first == n {
            return edges;
        }
        for _ in 0..local {
            let v = first + random.below(n - first);
            let back = random.geometric(0.6).min(4).min(self.of[v]);
            edges.push((self.pick(self.of[v] - back, random), v as u32));
        }
        const FAR: usize = 9;
        let far = self.start.get(FAR).map_or(first, |&s| s as usize);
        for _ in 0..if far < n { skips } else { 0 } {
            let v = far + random.below(n - far);
            let layer = random.below(self.of[v].saturating_sub(5).max(1) as usize) as u32;
            edges.push((self.pick(layer, random), v as u32));
        }
        edges
    }
}

/// SplitMix64 with the distributions needed here.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Box and Muller's method, one of its two values.
    fn log_normal(&mut self, mean: f64, deviation: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (mean + deviation * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }

    /// Number of trials up to the first success, at least 1.
    fn geometric(&mut self, success: f64) -> u32 {
        1 + ((1.0 - self.unit()).ln() / (1.0 - success).ln()) as u32
    }

    fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            ids.swap(i, self.below(i + 1));
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadmaster_core::topo::is_topological;

    #[test]
    fn the_standard_graph_has_the_shape_of_a_deep_network() {
        let layered = Layered::new(Options::default());
        assert!((92_000..94_500).contains(&layered.n_edges()), "{} edges", layered.n_edges());
        assert!(layered.src.iter().zip(&layered.dst).all(|(s, d)| s < d), "ids in order");
        let edge_mean = layered.src.iter().map(|&u| layered.tensor_seconds[u as usize]).sum::<f64>()
            / layered.n_edges() as f64;
        let ccr = edge_mean * layered.n_ops as f64 / layered.op_seconds.iter().sum::<f64>();
        assert!((ccr - 1.0).abs() < 0.02, "ccr {ccr}");
        assert_eq!(layered, Layered::new(Options::default()));
    }

    #[test]
    fn shuffling_permutes_ids_and_nothing_else() {
        let options = Options { n_ops: 2_000, ..Options::default() };
        let plain = Layered::new(options);
        let shuffled = Layered::new(Options { shuffle: true, ..options });
        assert_eq!(plain.n_edges(), shuffled.n_edges());
        let sorted = |mut column: Vec<u64>| {
            column.sort_unstable();
            column
        };
        assert_eq!(sorted(plain.static_bytes()), sorted(shuffled.static_bytes()));
        let graph = shuffled.graph().expect("layers make no cycle");
        assert!(is_topological(&graph, graph.topo()));
        assert!(shuffled.src.iter().zip(&shuffled.dst).any(|(s, d)| s > d));
    }
}
