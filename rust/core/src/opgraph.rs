//! A model's graph as a user knows it: every op with its name, views and placeholders included.
//!
//! Validated once, then immutable. Algorithms do not run on it but on what [`crate::reduce`] makes
//! of it.

use crate::collective::{Collectives, MemberColumns};
use crate::error::Error;
use crate::graph::{Graph, edges_of};
use crate::ids::{OpId, TensorId};

/// The columns of a model's graph. Per-op columns have one value per op, edge columns one per edge.
#[derive(Clone, Debug, Default)]
pub struct OpColumns {
    /// Unique names. Empty in a graph that a transform made ([`crate::expand`]): whoever asked for
    /// it knows what its ops are called.
    pub name: Vec<String>,
    /// Producer per edge.
    pub src: Vec<i64>,
    /// Consumer per edge.
    pub dst: Vec<i64>,
    /// Tensor id per edge, -1 for control edges; none: one tensor per op.
    pub tensor: Option<Vec<i64>>,
    /// Bytes of the tensor, per edge.
    pub bytes: Vec<u64>,
    /// Ops that move no data.
    pub view: Vec<bool>,
    /// Parameters, buffers, inputs, constants.
    pub placeholder: Vec<bool>,
    /// The op that owns the storage this op returns or changes in place; -1: its own.
    pub alias_of: Vec<i64>,
    /// Per placeholder, the op that it is placed with if nobody reads it; -1: the graph's first.
    pub near: Vec<i64>,
    /// Colocation group, negative: none.
    pub colocation: Vec<i64>,
    /// Floating-point operations.
    pub flops: Vec<u64>,
    /// Bytes read and written.
    pub accessed: Vec<u64>,
    /// Bytes of new storage.
    pub output_bytes: Vec<u64>,
    /// Bytes that stay for the whole step.
    pub resident: Vec<u64>,
    /// Bytes needed only while the op runs.
    pub workspace: Vec<u64>,
    /// The collective that each op is a member of, negative: none. Empty: there are none.
    pub collective: Vec<i64>,
    /// What each member's collective does, an index into
    /// [`Kind::NAMED`](crate::collective::Kind::NAMED).
    pub collective_kind: Vec<u8>,
    /// How often each op runs in a step. Empty: once.
    pub runs: Vec<u64>,
}

impl OpColumns {
    /// The columns of collectives.
    pub fn members(&self) -> MemberColumns<'_> {
        MemberColumns { group: &self.collective, kind: &self.collective_kind, runs: &self.runs }
    }
}

/// A validated model graph.
#[derive(Clone, Debug)]
pub struct OpGraph {
    pub(crate) columns: OpColumns,
    /// One tensor per pair of source and tensor id, so a forwarded tensor has several.
    pub(crate) graph: Graph,
    pub(crate) tensor_bytes: Vec<u64>,
}

impl OpGraph {
    /// Validates the columns. O(V + E), and O(V log V) for the names.
    ///
    /// # Errors
    /// Everything [`Graph::new`] refuses, columns of the wrong length, duplicate names, a tensor
    /// with two sizes or two producers, a bad `alias_of`; ops are called by name.
    pub fn new(columns: OpColumns) -> Result<Self, Error> {
        let n = columns.name.len();
        Self::checked(columns, n)
    }

    /// The graph with other numbers of its ops and other edges. Everything that [`OpGraph::new`]
    /// checks is checked again. O(V + E), and O(V log V) for names that the graph has.
    ///
    /// # Errors
    /// Those of [`OpGraph::new`].
    pub fn changed(&self, change: impl FnOnce(&mut OpColumns)) -> Result<Self, Error> {
        let mut columns = self.columns.clone();
        change(&mut columns);
        Self::checked(columns, self.n_ops())
    }

    fn checked(columns: OpColumns, n: usize) -> Result<Self, Error> {
        let checked = Self::check(&columns, n);
        let (graph, tensor_bytes) =
            checked.map_err(|error| error.with_names(|op| columns.name.get(op.ix()).cloned()))?;
        Ok(Self { columns, graph, tensor_bytes })
    }

    fn check(columns: &OpColumns, n: usize) -> Result<(Graph, Vec<u64>), Error> {
        check_lengths(columns, n)?;
        let graph = laid_out(columns)?;
        check_names(&columns.name)?;
        check_aliases(columns)?;
        check_near(columns)?;
        check_producers(columns, &graph)?;
        check_members(columns, &graph)?;
        let tensor_bytes = tensor_bytes(columns, &graph)?;
        Ok((graph, tensor_bytes))
    }

    /// A graph of columns that a transform made, which are valid because those of its source are.
    ///
    /// # Errors
    /// A cycle; more ops or edges than a graph may have; a view that passes a tensor on which it no
    /// longer reads.
    pub(crate) fn made(columns: OpColumns) -> Result<Self, Error> {
        let graph = laid_out(&columns)?;
        check_producers(&columns, &graph)?;
        let tensor_bytes = tensor_bytes(&columns, &graph)?;
        let made = Self { columns, graph, tensor_bytes };
        debug_assert_eq!(made.validated().err(), None);
        Ok(made)
    }

    /// Checks again everything that [`OpGraph::new`] does, but for the names of ops that have none.
    ///
    /// # Errors
    /// Those of [`OpGraph::new`].
    pub fn validated(&self) -> Result<(), Error> {
        Self::check(&self.columns, self.n_ops()).map(drop)
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.graph.n_ops()
    }

    /// An op's name; none in a graph that a transform made.
    pub fn name(&self, op: OpId) -> Option<&str> {
        self.columns.name.get(op.ix()).map(String::as_str)
    }

    /// The columns it was made from.
    pub fn columns(&self) -> &OpColumns {
        &self.columns
    }

    /// Per op, whether it is a member of a collective.
    pub fn is_member(&self) -> Vec<bool> {
        let groups = &self.columns.collective;
        (0..self.n_ops()).map(|op| groups.get(op).is_some_and(|&group| group >= 0)).collect()
    }

    /// Whether the op moves no data: its output lies in the storage of its input.
    pub(crate) fn is_view(&self, op: OpId) -> bool {
        self.columns.view[op.ix()] && self.data_input(op).is_some()
    }

    /// Whether the op stands for a tensor that is there at time 0.
    pub(crate) fn is_placeholder(&self, op: OpId) -> bool {
        self.columns.placeholder[op.ix()] && self.graph.in_degree(op) == 0
    }

    /// The tensor whose data a view shows, of the tensors with data that it reads: one made by the
    /// owner of the view's storage or by an op that changed that storage in place, else any. Of
    /// several tensors, that of the first op.
    pub(crate) fn data_input(&self, op: OpId) -> Option<TensorId> {
        let alias_of = &self.columns.alias_of;
        let owner = alias_of[op.ix()];
        let lies_there = |t: &TensorId| {
            let source = self.graph.source(*t);
            i64::from(source.0) == owner || alias_of[source.ix()] == owner
        };
        let data = self.graph.inputs(op).iter().copied().filter(|&t| !self.graph.is_control(t));
        let by_index = |&t: &TensorId| (self.graph.source(t), self.graph.key(t));
        let there = data.clone().filter(|t| owner >= 0 && lies_there(t)).min_by_key(by_index);
        there.or(data.min_by_key(by_index))
    }
}

/// The graph of the columns.
fn laid_out(columns: &OpColumns) -> Result<Graph, Error> {
    let n = columns.view.len();
    let edges = edges_of(n, &columns.src, &columns.dst, columns.tensor.as_deref())?;
    Graph::with_homes(n, edges, &[])
}

fn check_lengths(c: &OpColumns, n: usize) -> Result<(), Error> {
    let m = c.src.len();
    let per_op = [
        ("flops", c.flops.len()),
        ("accessed", c.accessed.len()),
        ("view", c.view.len()),
        ("placeholder", c.placeholder.len()),
        ("alias_of", c.alias_of.len()),
        ("near", c.near.len()),
        ("colocation", c.colocation.len()),
        ("output_bytes", c.output_bytes.len()),
        ("resident", c.resident.len()),
        ("workspace", c.workspace.len()),
    ];
    for (argument, got) in per_op {
        if got != n {
            return Err(Error::WrongLength { argument, got, want: n, per: "op" });
        }
    }
    if !c.runs.is_empty() && c.runs.len() != n {
        return Err(Error::WrongLength { argument: "runs", got: c.runs.len(), want: n, per: "op" });
    }
    if c.bytes.len() != m {
        return Err(Error::WrongLength { argument: "bytes", got: c.bytes.len(), want: m, per: "edge" });
    }
    Ok(())
}

fn check_names(names: &[String]) -> Result<(), Error> {
    let mut order: Vec<u32> = (0..names.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| names[a as usize].cmp(&names[b as usize]).then(a.cmp(&b)));
    match order.windows(2).find(|w| names[w[0] as usize] == names[w[1] as usize]) {
        None => Ok(()),
        Some(w) => {
            Err(Error::DuplicateName { name: names[w[0] as usize].clone(), first: w[0], second: w[1] })
        }
    }
}

fn check_near(c: &OpColumns) -> Result<(), Error> {
    let runs = |op: usize| op < c.view.len() && !c.view[op] && !c.placeholder[op];
    match (0..c.near.len()).find(|&u| c.near[u] >= 0 && !runs(c.near[u] as usize)) {
        None => Ok(()),
        Some(u) => {
            let (op, value) = (OpId::new(u).into(), c.near[u] as f64);
            Err(Error::BadValue { argument: "near", op, value })
        }
    }
}

fn check_aliases(c: &OpColumns) -> Result<(), Error> {
    for (u, &alias) in c.alias_of.iter().enumerate() {
        if alias >= c.view.len() as i64 || alias == u as i64 {
            return Err(Error::BadAlias { op: OpId::new(u).into(), value: alias });
        }
    }
    // Per op, the walk that met it first, 0 for none. A walk ends at an op that was met before. If
    // that was in the same walk, the aliases go in a circle.
    let mut walk = vec![0; c.alias_of.len()];
    for first in 0..c.alias_of.len() {
        let (mut at, number) = (first, first + 1);
        while walk[at] == 0 && c.alias_of[at] >= 0 {
            walk[at] = number;
            at = c.alias_of[at] as usize;
        }
        if walk[at] == number {
            return Err(Error::BadAlias { op: OpId::new(at).into(), value: c.alias_of[at] });
        }
    }
    Ok(())
}

/// Members of collectives run; what else must hold of them does.
fn check_members(c: &OpColumns, graph: &Graph) -> Result<(), Error> {
    Collectives::of(graph, c.members(), |_| (0, 0))?;
    let is_wrong = |u: &usize| c.collective[*u] >= 0 && (c.view[*u] || c.placeholder[*u]);
    match (0..c.collective.len()).find(is_wrong) {
        Some(u) => Err(Error::BadMember { op: OpId::new(u).into() }),
        None => Ok(()),
    }
}

/// A tensor id has one owner; views that read it may pass it on.
fn check_producers(c: &OpColumns, graph: &Graph) -> Result<(), Error> {
    let n_ids = graph.n_ops() + c.src.len();
    let mut owner = vec![OpId::NONE; n_ids];
    for t in graph.tensors().filter(|&t| !graph.is_control(t)) {
        let (op, id) = (graph.source(t), graph.key(t) as usize);
        let forwards = c.view[op.ix()] && graph.inputs(op).iter().any(|&i| graph.key(i) as usize == id);
        if !forwards {
            let first = std::mem::replace(&mut owner[id], op);
            if !first.is_none() {
                return Err(Error::TwoProducers {
                    tensor: id as u32,
                    first: first.into(),
                    second: op.into(),
                });
            }
        }
    }
    Ok(())
}

/// Bytes per tensor; all edges of one tensor must agree. Control edges count nothing.
fn tensor_bytes(c: &OpColumns, graph: &Graph) -> Result<Vec<u64>, Error> {
    let mut bytes: Vec<Option<u64>> = vec![None; graph.n_tensors()];
    for i in 0..c.src.len() {
        let op = OpId(c.src[i] as u32);
        let id = match &c.tensor {
            None => op.0,
            Some(ids) if ids[i] < 0 => continue,
            Some(ids) => ids[i] as u32,
        };
        let Some(tensor) = graph.output_with_key(op, id) else { continue };
        let first = *bytes[tensor.ix()].get_or_insert(c.bytes[i]);
        if first != c.bytes[i] {
            return Err(Error::TwoSizes { tensor: i64::from(id), op: op.into(), first, second: c.bytes[i] });
        }
    }
    Ok(bytes.into_iter().map(|b| b.unwrap_or(0)).collect())
}
