//! Ops that wait for others without reading them: edges without data. O(V + E).

use crate::error::Error;
use crate::ids::OpId;
use crate::opgraph::OpGraph;

/// The graph with a control edge from each of `src` to the op of `dst` at the same place, after its
/// own edges.
///
/// # Errors
/// A cycle; more edges than a graph may have.
pub fn with_control(source: &OpGraph, src: &[i64], dst: &[i64]) -> Result<OpGraph, Error> {
    let mut columns = source.columns().clone();
    let mut tensor = columns.tensor.unwrap_or_else(|| columns.src.clone());
    tensor.extend(std::iter::repeat_n(-1, src.len()));
    columns.tensor = Some(tensor);
    columns.src.extend_from_slice(src);
    columns.dst.extend_from_slice(dst);
    columns.bytes.extend(std::iter::repeat_n(0, src.len()));
    let named = |op: OpId| source.name(op).map(String::from);
    OpGraph::made(columns).map_err(|error| error.with_names(named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opgraph::OpColumns;

    fn two_apart() -> OpGraph {
        let bool_ = vec![false; 3];
        OpGraph::new(OpColumns {
            name: ["a", "b", "c"].map(String::from).to_vec(),
            src: vec![0],
            dst: vec![1],
            bytes: vec![8],
            view: bool_.clone(),
            placeholder: bool_,
            alias_of: vec![-1; 3],
            near: vec![-1; 3],
            colocation: vec![-1; 3],
            flops: vec![0; 3],
            accessed: vec![0; 3],
            output_bytes: vec![0; 3],
            resident: vec![0; 3],
            workspace: vec![0; 3],
            ..OpColumns::default()
        })
        .unwrap()
    }

    #[test]
    fn edges_come_after_those_there_are() {
        let made = with_control(&two_apart(), &[1], &[2]).unwrap();
        let columns = made.columns();
        assert_eq!((&columns.src, &columns.dst), (&vec![0, 1], &vec![1, 2]));
        assert_eq!((columns.tensor.as_deref(), &columns.bytes), (Some(&[0, -1][..]), &vec![8, 0]));
        made.validated().unwrap();
    }

    #[test]
    fn a_cycle_is_refused() {
        assert!(with_control(&two_apart(), &[1], &[0]).is_err());
    }
}
