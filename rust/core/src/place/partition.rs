//! Multilevel k-way partitioning of an undirected graph (Karypis and Kumar 1998): parts get given shares
//! of the vertices' weight, and the edges between parts weigh as little as can be found.
//!
//! 1. *Coarsen*: vertices are matched along their heaviest edges until few are left.
//! 2. *Start*: on the coarsest graph parts grow one after another. A part takes the vertex whose edges to
//!    it weigh most. This is done from several first vertices, and the least cut goes on.
//! 3. *Uncoarsen*: level by level, a vertex moves to the part to which its edges weigh most, if
//!    that keeps every part within 5 % of its share.
//!
//! Vertices are visited by number, and of equal ones the first is taken, so the result depends on the input
//! alone. O((V + E) log V).

use std::collections::BinaryHeap;

use crate::csr::Csr;

/// Vertices per part on the coarsest graph.
const COARSEST: usize = 24;

/// Coarsening ends after a round of matching that leaves more than this share of the vertices.
const WORTHWHILE: f64 = 0.9;

/// Most weight of a part, as a multiple of its share.
const BALANCE: f64 = 1.05;

/// Passes over the vertices of a level, at most.
const PASSES: usize = 8;

/// First vertices from which parts grow.
const STARTS: usize = 8;

/// An undirected graph: weights of its vertices, and the neighbours of each with the edges' weights. Every
/// edge is listed at both ends. No vertex is its own neighbour.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighted {
    /// Per vertex.
    pub weight: Vec<u64>,
    /// Per vertex.
    pub edges: Csr<(u32, u64)>,
}

impl Weighted {
    /// Makes the graph of edges that are given once each. The weights of edges between the same ends add up.
    pub fn new(weight: Vec<u64>, edges: impl Iterator<Item = (u32, u32, u64)> + Clone) -> Self {
        let ways = edges.flat_map(|(v, w, edge)| [(v as usize, (w, edge)), (w as usize, (v, edge))]);
        Self { edges: Csr::from_pairs(weight.len(), ways), weight }
    }
}

/// The part of each vertex; `share` has what each part should weigh, in any unit.
pub fn partition(graph: &Weighted, share: &[f64]) -> Vec<u32> {
    let total: u64 = graph.weight.iter().sum();
    let whole: f64 = share.iter().sum();
    let room: Vec<u64> = share.iter().map(|s| (BALANCE * s / whole * total as f64).ceil() as u64).collect();
    let mut levels: Vec<(Weighted, Vec<u32>)> = Vec::new();
    let least = COARSEST * share.len();
    let heaviest = (1.5 * total as f64 / least as f64) as u64;
    loop {
        let finest = levels.last().map_or(graph, |(coarse, _)| coarse);
        if finest.weight.len() <= least {
            break;
        }
        let (coarse, map) = matched(finest, heaviest);
        if coarse.weight.len() as f64 > WORTHWHILE * finest.weight.len() as f64 {
            break;
        }
        levels.push((coarse, map));
    }
    let coarsest = levels.last().map_or(graph, |(coarse, _)| coarse);
    let mut part = started(coarsest, &room);
    for i in (0..levels.len()).rev() {
        let finer = if i == 0 { graph } else { &levels[i - 1].0 };
        part = levels[i].1.iter().map(|&v| part[v as usize]).collect();
        refine(finer, &room, &mut part);
    }
    part
}

/// The weight of the edges between parts.
pub fn cut(graph: &Weighted, part: &[u32]) -> u64 {
    let across = |v: usize| {
        let row = graph.edges.row(v).iter();
        row.filter(|(w, _)| part[*w as usize] != part[v]).map(|(_, weight)| weight).sum::<u64>()
    };
    (0..part.len()).map(across).sum::<u64>() / 2
}

/// The graph of vertices matched along their heaviest edges, and the new number of each vertex.
fn matched(graph: &Weighted, heaviest: u64) -> (Weighted, Vec<u32>) {
    let n = graph.weight.len();
    let mut map = vec![u32::MAX; n];
    let mut weight = Vec::with_capacity(n);
    for v in 0..n {
        if map[v] != u32::MAX {
            continue;
        }
        let number = weight.len() as u32;
        map[v] = number;
        let mut best: Option<(u64, u32)> = None;
        for &(w, edge) in graph.edges.row(v) {
            let is_free = map[w as usize] == u32::MAX;
            let is_light = graph.weight[v] + graph.weight[w as usize] <= heaviest;
            if is_free && is_light && best.is_none_or(|(most, _)| edge > most) {
                best = Some((edge, w));
            }
        }
        let mut sum = graph.weight[v];
        if let Some((_, w)) = best {
            map[w as usize] = number;
            sum += graph.weight[w as usize];
        }
        weight.push(sum);
    }
    let m = weight.len();
    let members = Csr::from_pairs(m, map.iter().enumerate().map(|(v, &c)| (c as usize, v as u32)));
    let mut pairs: Vec<(usize, (u32, u64))> = Vec::new();
    let mut place = vec![usize::MAX; m];
    for c in 0..m {
        let first = pairs.len();
        for &v in members.row(c) {
            for &(w, edge) in graph.edges.row(v as usize) {
                let to = map[w as usize] as usize;
                if to == c {
                    continue;
                }
                if place[to] == usize::MAX {
                    place[to] = pairs.len();
                    pairs.push((c, (to as u32, 0)));
                }
                pairs[place[to]].1.1 += edge;
            }
        }
        pairs[first..].iter().for_each(|(_, (to, _))| place[*to as usize] = usize::MAX);
    }
    (Weighted { weight, edges: Csr::from_pairs(m, pairs.iter().copied()) }, map)
}

/// Parts that are grown from several first vertices and refined: those of the least cut.
fn started(graph: &Weighted, room: &[u64]) -> Vec<u32> {
    let n = graph.weight.len();
    let count = STARTS.min(n).max(1);
    let grown = (0..count).map(|i| {
        let mut part = grown(graph, room, i * n / count);
        refine(graph, room, &mut part);
        part
    });
    let over = |part: &Vec<u32>| {
        let sums = sums(graph, room.len(), part);
        sums.iter().zip(room).map(|(sum, room)| sum.saturating_sub(*room)).sum::<u64>()
    };
    grown.min_by_key(|part| (over(part), cut(graph, part))).unwrap_or_default()
}

fn sums(graph: &Weighted, n_parts: usize, part: &[u32]) -> Vec<u64> {
    let mut sums = vec![0; n_parts];
    part.iter().zip(&graph.weight).for_each(|(&p, &weight)| sums[p as usize] += weight);
    sums
}

/// Fills parts one after another. A part takes the vertex whose edges to it weigh most, else the next.
fn grown(graph: &Weighted, room: &[u64], first: usize) -> Vec<u32> {
    let n = graph.weight.len();
    let n_parts = room.len();
    let mut part = vec![u32::MAX; n];
    let mut tied = vec![0u64; n];
    let mut next = first;
    let mut left = n;
    for (p, &room) in room.iter().enumerate() {
        let share = (room as f64 / BALANCE) as u64;
        let mut sum = 0;
        tied.fill(0);
        let mut frontier: BinaryHeap<(u64, std::cmp::Reverse<u32>)> = BinaryHeap::new();
        while left > 0 && (sum < share || p + 1 == n_parts) {
            let v = loop {
                match frontier.pop() {
                    Some((tie, std::cmp::Reverse(v))) => {
                        if part[v as usize] == u32::MAX && tied[v as usize] == tie {
                            break v as usize;
                        }
                    }
                    None => {
                        while part[next % n] != u32::MAX {
                            next += 1;
                        }
                        break next % n;
                    }
                }
            };
            if sum > 0 && p + 1 < n_parts && sum + graph.weight[v] / 2 > share {
                break;
            }
            part[v] = p as u32;
            sum += graph.weight[v];
            left -= 1;
            for &(w, edge) in graph.edges.row(v) {
                if part[w as usize] == u32::MAX {
                    tied[w as usize] += edge;
                    frontier.push((tied[w as usize], std::cmp::Reverse(w)));
                }
            }
        }
    }
    part
}

/// Moves each vertex to the part to which its edges weigh most. A part that weighs too much gives
/// vertices away at any price.
fn refine(graph: &Weighted, room: &[u64], part: &mut [u32]) {
    let n_parts = room.len();
    let mut sum = sums(graph, n_parts, part);
    let mut tied = vec![0u64; n_parts];
    for _ in 0..PASSES {
        let mut moved = false;
        for v in 0..part.len() {
            let from = part[v] as usize;
            let row = graph.edges.row(v);
            let is_over = sum[from] > room[from];
            if !is_over && row.iter().all(|(w, _)| part[*w as usize] as usize == from) {
                continue;
            }
            tied.fill(0);
            row.iter().for_each(|(w, edge)| tied[part[*w as usize] as usize] += edge);
            let weight = graph.weight[v];
            let fits = |p: &usize| *p != from && sum[*p] + weight <= room[*p];
            let Some(to) = (0..n_parts).filter(fits).max_by_key(|&p| (tied[p], std::cmp::Reverse(p))) else {
                continue;
            };
            let is_lighter =
                sum[to] as f64 / (room[to] as f64) < (sum[from] - weight) as f64 / room[from] as f64;
            if tied[to] > tied[from] || is_over || (tied[to] == tied[from] && is_lighter) {
                part[v] = to as u32;
                sum[from] -= weight;
                sum[to] += weight;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Weighted, cut, partition};
    /// `count` cliques of `size` vertices in a ring, joined by light edges.
    fn cliques(count: usize, size: usize) -> Weighted {
        let n = count * size;
        let heavy =
            (0..n).flat_map(|v| (v + 1..n).map(move |w| (v, w))).filter(|(v, w)| v / size == w / size);
        let light = (0..count).map(|c| (c * size, (c + 1) % count * size));
        let edges =
            heavy.map(|(v, w)| (v as u32, w as u32, 10)).chain(light.map(|(v, w)| (v as u32, w as u32, 1)));
        Weighted::new(vec![1; n], edges)
    }

    #[test]
    fn cliques_are_left_together() {
        let graph = cliques(16, 20);
        let part = partition(&graph, &[1.0; 4]);
        for v in 0..part.len() {
            assert_eq!(part[v], part[v / 20 * 20], "clique {} is parted", v / 20);
        }
        let mut sums = [0; 4];
        part.iter().for_each(|&p| sums[p as usize] += 1);
        assert_eq!(sums, [80; 4]);
        assert!(cut(&graph, &part) <= 16);
    }

    #[test]
    fn parts_weigh_what_they_should() {
        let graph = cliques(200, 5);
        let part = partition(&graph, &[3.0, 1.0]);
        let first = part.iter().filter(|&&p| p == 0).count();
        assert!((712..=788).contains(&first), "{first} of 1000 vertices where 750 were asked for");
        assert_eq!(partition(&Weighted::new(vec![], [].into_iter()), &[1.0]), []);
    }
}
