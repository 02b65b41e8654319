//! PEFT's optimistic cost table (Arabnejad and Barbosa 2014, eq. (1)).
//!
//! The least time from an op's finish on a device to the end of the graph, if every later op had
//! its best device for itself: OCT(u, k) = max over children v of min over k' of OCT(v, k') +
//! w(v, k') + c(u, v), no c where v stays on the device. Devices of one type are alike, so there is
//! a column per type. Going to another device of the same type costs a transfer and gains nothing,
//! so the same type means the same device. O(E K^2) for K device types.

use crate::clock::Ticks;
use crate::ids::OpId;
use crate::workload::Workload;

/// Ticks per op and device type, row-major. `time` has the same shape; `tensor_time` is per tensor, between
/// an average pair of devices.
pub fn optimistic_costs(
    work: &Workload,
    n_types: usize,
    time: &[Ticks],
    tensor_time: &[Ticks],
) -> Vec<Ticks> {
    let graph = &work.graph;
    let mut table = vec![0; time.len()];
    for &u in graph.topo().iter().rev() {
        for k in 0..n_types {
            let mut worst = 0;
            for t in graph.outputs(u) {
                for &v in graph.consumers(t) {
                    worst = worst.max(best_for_child(work, v, k, n_types, time, &table, tensor_time[t.ix()]));
                }
            }
            table[u.ix() * n_types + k] = worst;
        }
    }
    table
}

/// The least time from the start of a child to the end, its input coming from a device of type `k`.
fn best_for_child(
    work: &Workload,
    child: OpId,
    k: usize,
    n_types: usize,
    time: &[Ticks],
    table: &[Ticks],
    transfer: Ticks,
) -> Ticks {
    let row = child.ix() * n_types;
    (0..n_types)
        .filter(|other| work.allowed[child.ix()] >> other & 1 == 1)
        .map(|other| table[row + other] + time[row + other] + if other == k { 0 } else { transfer })
        .min()
        .unwrap_or(0)
}
