//! A pipeline cut into kernels, where one kernel cannot be: each as large as lowering takes it.
//!
//! ```text
//! gather(dy) -> gemm(w.t) -> gelu_grad(h) ─┬─> gemm(v.t) -> reduce_scatter      one kernel, which also returns what stands at the branch
//!                                          └─> operand B of a GEMM       the next kernel
//! ```
//!
//! Operations are taken in their order. Each goes into the kernel that makes its operands, or into one behind that, if
//! lowering accepts that kernel with it; else it begins a new one. What is done element by element and has no kernel is
//! a step of its own, which the caller of the steps computes, and so is a `view`, which moves nothing. Whether a kernel
//! of a step pays, or its parts are faster, is decided where it is made ([`crate::choice`]).
//!
//! Large GEMMs that share no value made in the kernel stay apart, and so does one that reads what the caller gets
//! anyway: one kernel of both hides nothing that two do not, and has one tile shape for both. Two H100, `[32768, 4096]`
//! and 14336 columns a rank: two of a gated block's gradients 11.4 ms, apart 10.2; its forward, which saves what the
//! backward needs, 9.4 ms, apart 8.2.

use mk_codegen::passes::{self, LowerError};
use mk_syntax::{
    Bound, Def, Diagnostics, Dim, Excerpt, Node, Op, Placement, Program, SymbolId, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// A step of a pipeline that was cut.
#[derive(Clone, Debug)]
pub struct Step {
    /// A kernel; otherwise a `view` of memory, or element by element, and nothing moves between ranks.
    pub is_kernel: bool,
    /// The text.
    pub text: String,
    /// It, checked.
    pub program: Program,
    /// What its parameters are in the pipeline, in their order.
    pub inputs: Vec<ValueId>,
    /// What its results are there.
    pub results: Vec<ValueId>,
    /// Those of them whose two last dimensions in the pipeline are one here.
    pub flat: Vec<ValueId>,
}

/// Why a pipeline cannot be cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// Operations that must be one kernel have none.
    #[error("no kernel holds this part of the pipeline:\n{text}{error}")]
    NoKernel {
        /// The part.
        text: String,
        /// Why.
        #[source]
        error: Box<LowerError>,
    },
    /// Ranks have parts of a value that are none where it is seen otherwise.
    #[error(
        "ranks cannot keep their parts in this `view`:\n{text}`{dim}` is {size}, and {ranks} ranks share it"
    )]
    View {
        /// The part.
        text: String,
        /// The dimension of heads that ranks share.
        dim: String,
        /// Its number.
        size: u64,
        /// How many they are.
        ranks: u64,
    },
    /// A value has a type that no parameter may have, and stands where kernels are cut.
    #[error("this part of the pipeline is none by itself:\n{text}{diagnostics}")]
    NoPipeline {
        /// The part.
        text: String,
        /// Why.
        diagnostics: Diagnostics,
    },
}

/// Cuts a pipeline with these sizes, for `ranks` ranks by the axes of their mesh; without axes, along the pipeline's
/// only one. A function of its arguments.
///
/// # Errors
/// [`CutError`]: an operation that no kernel holds, however it is cut.
pub fn cut(
    program: &Program,
    bound: &Bound,
    ranks: u32,
    mesh: &[(String, u32)],
) -> Result<Vec<Step>, CutError> {
    cut_over(program, bound, (ranks, 1), mesh)
}

/// The same for ranks on so many nodes.
///
/// # Errors
/// As [`cut`].
pub fn cut_over(
    program: &Program,
    bound: &Bound,
    (ranks, nodes): (u32, u32),
    mesh: &[(String, u32)],
) -> Result<Vec<Step>, CutError> {
    let of = BTreeMap::new();
    let mut cutter = Cutter { program, bound, ranks, nodes, mesh, groups: Vec::new(), of };
    let together: BTreeSet<ValueId> = weighed(program).flat_map(|(_, others)| others).collect();
    let alone = |n: &&Node| !program.is_implied(n) && !together.contains(&n.result);
    for node in program.nodes().iter().filter(alone) {
        cutter.place(node);
    }
    let groups = std::mem::take(&mut cutter.groups);
    groups.iter().map(|group| cutter.step(&cutter.as_kernel(group))).collect()
}

/// Each gradient of an activation of rows that have weights behind it, and what is made with it: weighed rows, and
/// gradients of weights, which have no kernel without it. All are made of what its operands are made of.
fn weighed(program: &Program) -> impl Iterator<Item = (ValueId, Vec<ValueId>)> {
    let node = |id: ValueId| match program.def(id) {
        Some(Def::Node(node)) => Some(node),
        _ => None,
    };
    program.nodes().iter().filter_map(move |grad| {
        let &[scaled, h] = &grad.inputs[..] else { return None };
        let scaled = node(scaled).filter(|n| (grad.op, n.op) == (Op::SwigluGrad, Op::Weigh))?;
        let u = scaled.inputs[0];
        let of_rows = |n: &Node| match n.op {
            Op::Swiglu => n.inputs[0] == h,
            Op::Weigh | Op::WeighGrad => {
                let made = |id: &ValueId| {
                    node(*id).is_some_and(|n| n.op == Op::Swiglu && n.inputs[0] == h)
                };
                n.inputs[0] == u || n.inputs.iter().any(made)
            }
            _ => false,
        };
        let others = program.nodes().iter().filter(|n| of_rows(n)).map(|n| n.result);
        Some((grad.result, others.collect()))
    })
}

/// Elements of a tile.
const TILE: u64 = 128 * 256;
/// Tiles that fill a GPU twice: fewer gain where they are multiplied beside others.
const MANY_TILES: u64 = 264;
/// The depth from which on a GEMM takes longer than the reduction of its result over NVLink.
const HIDES_SUMS: u64 = 2048;

/// A GEMM, as far as it decides whether another one can share its kernel.
struct Product {
    tiles: u64,
    /// On a rank.
    depth: u64,
    is_summed: bool,
}

/// Operations that become one step.
#[derive(Clone)]
struct Group {
    nodes: Vec<ValueId>,
    is_kernel: bool,
    /// Runtime symbols are fixed.
    fixed: bool,
    /// Lowering takes it as it is; one that it does not take may still grow to one that it does.
    sound: bool,
}

struct Cutter<'a> {
    program: &'a Program,
    bound: &'a Bound,
    ranks: u32,
    nodes: u32,
    mesh: &'a [(String, u32)],
    groups: Vec<Group>,
    /// Which group makes a value.
    of: BTreeMap<ValueId, usize>,
}

impl Cutter<'_> {
    fn place(&mut self, node: &Node) {
        let (unit, read) = (self.unit(node), self.read(node));
        let first = read.iter().filter_map(|i| self.of.get(i).copied()).max().unwrap_or(0);
        let found =
            (first..self.groups.len()).find_map(|i| Some((i, self.with(&self.groups[i], node)?)));
        let (at, group) = found.unwrap_or_else(|| {
            let alone =
                |is_kernel, fixed| Group { nodes: unit.clone(), is_kernel, fixed, sound: true };
            let pointwise = self.is_pointwise(node) || node.op == Op::View;
            let kernels = [false, true].into_iter().map(|fixed| alone(true, fixed));
            let sound = kernels.into_iter().find(|g| !pointwise && self.accepts(g));
            let group = sound.unwrap_or(Group { sound: pointwise, ..alone(!pointwise, false) });
            (self.groups.len(), group)
        });
        self.of.extend(unit.iter().map(|id| (*id, at)));
        match self.groups.get_mut(at) {
            Some(old) => *old = group,
            None => self.groups.push(group),
        }
    }

    /// Operations that are element by element become a kernel behind all others: before, they would take operations
    /// away from the kernels that they end.
    fn as_kernel(&self, group: &Group) -> Group {
        let alone =
            |fixed| Group { is_kernel: true, sound: true, fixed, nodes: group.nodes.clone() };
        let found = || [false, true].map(alone).into_iter().find(|g| self.accepts(g));
        (!group.is_kernel).then(found).flatten().unwrap_or_else(|| group.clone())
    }

    /// A group with one operation more, if that can be.
    fn with(&self, group: &Group, node: &Node) -> Option<Group> {
        let is_view =
            |id: &ValueId| matches!(self.program.def(*id), Some(Def::Node(n)) if n.op == Op::View);
        if node.op == Op::View || group.nodes.iter().any(is_view) {
            return None;
        }
        let mut group = group.clone();
        let made = group.nodes.clone();
        group.nodes.extend(self.unit(node));
        if !group.is_kernel {
            return self.is_pointwise(node).then_some(group);
        }
        let joined = self.read(node).iter().any(|id| made.contains(id));
        if (!joined || self.reads_saved(node)) && self.stands_alone(&group, node) {
            return None;
        }
        // What goes with weights may need a number of tokens that its product does not.
        let unsound = joined && (!group.sound || self.weighs(node));
        let fixed = Group { fixed: true, sound: true, ..group.clone() };
        match self.accepts(&group) {
            true => Some(Group { sound: true, ..group }),
            false if unsound && self.accepts(&fixed) => Some(fixed),
            false if joined && self.grows(&group, node) => Some(Group { sound: false, ..group }),
            false => (unsound && !group.sound).then_some(group),
        }
    }

    /// Whether it is made with weighed rows, and gradients of weights.
    fn weighs(&self, node: &Node) -> bool {
        weighed(self.program).any(|(grad, _)| grad == node.result)
    }

    /// Whether an operation, and what is made with it, needs nothing but its operands' elements on this rank.
    fn is_pointwise(&self, node: &Node) -> bool {
        is_pointwise(&node.op) && !self.weighs(node)
    }

    /// An operation, and what is made with it.
    fn unit(&self, node: &Node) -> Vec<ValueId> {
        let with = weighed(self.program).find(|(grad, _)| *grad == node.result);
        with.into_iter().flat_map(|(_, others)| others).chain(self.program.unit(node)).collect()
    }

    /// What these read that others make.
    fn read(&self, node: &Node) -> Vec<ValueId> {
        let unit = self.unit(node);
        let nodes = unit.iter().filter_map(|id| match self.program.def(*id) {
            Some(Def::Node(node)) if !self.program.is_implied(node) => Some(node),
            _ => None,
        });
        let read = nodes.flat_map(|n| self.program.written_inputs(n));
        read.filter(|id| !unit.contains(id)).collect()
    }

    /// Whether a gather of values with their factors, which no kernel ends in, goes with the operations before it and
    /// the GEMM behind it.
    fn grows(&self, group: &Group, node: &Node) -> bool {
        let pair = matches!(node.op, Op::Gather { .. });
        let pair = pair && self.program.factors(node.result).is_some();
        let reads = |n: &&Node| {
            !self.program.is_implied(n) && self.program.written_inputs(n).contains(&node.result)
        };
        let Some(reader) = self.program.nodes().iter().find(reads).filter(|_| pair) else {
            return false;
        };
        let mut larger = group.clone();
        larger.nodes.extend(self.program.unit(reader));
        self.accepts(&larger)
    }

    /// Whether a GEMM gains nothing by standing beside those of a group: each side fills the GPU several times, and
    /// sums over ranks are hidden under their own GEMMs.
    fn stands_alone(&self, group: &Group, node: &Node) -> bool {
        let others = group.nodes.iter().filter_map(|id| match self.program.def(*id) {
            Some(Def::Node(other)) if other.result != node.result => self.product(other),
            _ => None,
        });
        let (Some(own), others) = (self.product(node), others.collect::<Vec<_>>()) else {
            return false;
        };
        let tiles = |list: &[Product]| list.iter().map(|p| p.tiles).sum::<u64>();
        let hidden = |p: &Product| !p.is_summed || p.depth >= HIDES_SUMS;
        let many = own.tiles >= MANY_TILES && tiles(&others) >= MANY_TILES;
        many && others.iter().chain([&own]).all(hidden)
    }

    /// Whether a GEMM's operand A is in memory for the caller anyway, and no peer's rows are waited for.
    fn reads_saved(&self, node: &Node) -> bool {
        let read = self.program.written_inputs(node);
        let Some(left) = read.first() else { return false };
        let made = matches!(self.program.def(*left), Some(Def::Node(n)) if !matches!(n.op, Op::Gather { .. }));
        made && self.program.results().contains(left)
    }

    /// The GEMM that one rank computes.
    fn product(&self, node: &Node) -> Option<Product> {
        let Op::Gemm { a_transposed, .. } = node.op else { return None };
        let a = self.bound.shape(*node.inputs.first()?)?;
        let depth: u64 = if a_transposed { *a.first()? } else { a.get(1..)?.iter().product() };
        let elements: u64 = self.bound.shape(node.result)?.iter().product();
        let parts = |shared: fn(&Placement) -> bool| {
            let over = node.ty.placement.iter().enumerate().filter(|(_, p)| shared(p));
            over.map(|(axis, _)| self.along(axis)).product::<u64>()
        };
        let depth_parts = parts(|p| *p == Placement::Partial);
        Some(Product {
            tiles: elements / parts(|p| p.cut().is_some()) / TILE,
            depth: depth / depth_parts,
            is_summed: node.ty.placement.contains(&Placement::Partial),
        })
    }

    /// Ranks along an axis of the pipeline.
    fn along(&self, axis: usize) -> u64 {
        let name = self.program.mesh_axes().get(axis);
        let named = self.mesh.iter().find(|(other, _)| Some(other) == name);
        u64::from(named.map_or(self.ranks, |(_, size)| *size).max(1))
    }

    fn accepts(&self, group: &Group) -> bool {
        let excerpt = self.excerpt(group);
        let Ok(program) = Program::parse(&excerpt.text()) else { return false };
        let Some(bound) = bind(&excerpt, self.bound, &program) else { return false };
        let facts = passes::facts_on(&program, &bound, self.ranks, self.mesh);
        // Over nodes numbers of tokens are fixed.
        facts.is_ok_and(|facts| self.nodes == 1 || !facts.parts)
    }

    fn step(&self, group: &Group) -> Result<Step, CutError> {
        let excerpt = self.excerpt(group);
        let text = excerpt.text();
        if let [one] = group.nodes[..]
            && let Some((dim, size, ranks)) = self.uneven(one)
        {
            return Err(CutError::View { text, dim, size, ranks });
        }
        let program = match Program::parse(&text) {
            Ok(program) => program,
            Err(diagnostics) => return Err(CutError::NoPipeline { text, diagnostics }),
        };
        if group.is_kernel
            && !group.sound
            && let Some(bound) = bind(&excerpt, self.bound, &program)
            && let Err(error) = passes::facts_on(&program, &bound, self.ranks, self.mesh)
        {
            return Err(CutError::NoKernel { text, error: error.into() });
        }
        let inputs = excerpt.inputs();
        let touched = inputs.iter().chain(&excerpt.results).copied();
        let flat = touched.filter(|id| excerpt.flat && excerpt.flattens(*id)).collect();
        let results = excerpt.results;
        Ok(Step { is_kernel: group.is_kernel, text, program, inputs, results, flat })
    }

    /// The dimension of heads of a `view` that ranks have unequal parts of, where those are no parts of rows; its
    /// number, and how many ranks they are. Parts of one sequence are parts of its rows.
    fn uneven(&self, id: ValueId) -> Option<(String, u64, u64)> {
        let Some(Def::Node(node)) =
            self.program.def(id).filter(|def| matches!(def, Def::Node(n) if n.op == Op::View))
        else {
            return None;
        };
        let all = node.inputs.iter().chain([&node.result]).filter_map(|id| self.program.ty(*id));
        let heads = all.clone().find(|ty| ty.dims.len() == 4)?;
        let shared = heads.placement.iter().enumerate().filter_map(|(axis, p)| match p {
            Placement::Shard(d @ (0 | 2)) => Some((heads.dims[*d], self.along(axis))),
            _ => None,
        });
        let mut sized = shared.filter_map(|(dim, ranks)| Some((dim, self.bound.dim(dim)?, ranks)));
        let (dim, size, ranks) = sized.find(|(_, size, ranks)| size % ranks != 0)?;
        let name = match dim {
            Dim::Sym(id) => self.program.symbols().get(id.index()).map(|s| s.name.clone()),
            Dim::Lit(n) => Some(n.to_string()),
        };
        Some((name.unwrap_or_default(), size, ranks))
    }

    /// A group's text: its results are what others read, or the caller.
    fn excerpt(&self, group: &Group) -> Excerpt<'_> {
        let inside: BTreeSet<ValueId> = group.nodes.iter().copied().collect();
        let others = self.program.nodes().iter().filter(|n| !inside.contains(&n.result));
        let read: BTreeSet<ValueId> = others.flat_map(|n| n.inputs.iter().copied()).collect();
        let mut nodes = group.nodes.clone();
        nodes.sort_unstable();
        let wanted = |id: &ValueId| read.contains(id) || self.program.results().contains(id);
        let results = nodes.iter().copied().filter(wanted).collect();
        let name = format!("{}_{}", self.program.name(), nodes.first().map_or(0, |id| id.index()));
        let excerpt = Excerpt {
            program: self.program,
            name,
            nodes,
            results,
            flat: false,
            fixed: group.fixed,
        };
        let flat = group.is_kernel && self.is_flat(&excerpt);
        Excerpt { flat, ..excerpt }
    }

    /// Whether gates and ups of a group's values lie side by side as any other columns, equally many on all ranks.
    fn is_flat(&self, excerpt: &Excerpt<'_>) -> bool {
        let all = excerpt.nodes.iter().filter_map(|id| match self.program.def(*id) {
            Some(Def::Node(node)) => Some(node),
            _ => None,
        });
        let mut wide = all
            .clone()
            .flat_map(|n| n.inputs.iter().chain([&n.result]))
            .filter(|id| excerpt.flattens(**id));
        let even = |id: &ValueId| {
            let Some(ty) = self.program.ty(*id) else { return false };
            let n = ty.dims.get(2).and_then(|dim| match dim {
                Dim::Lit(n) => Some(*n),
                dim => self.bound.dim(*dim),
            });
            let mut over = ty.placement.iter().enumerate();
            over.all(|(axis, p)| {
                *p != Placement::Shard(2) || n.is_some_and(|n| n % self.along(axis) == 0)
            })
        };
        let gated = all.clone().any(|n| {
            let gates = matches!(n.op, Op::Swiglu | Op::SwigluGrad);
            // Logarithms `[B, H, S]` have neither gates nor ups.
            gates || matches!(n.op, Op::Lse | Op::AttentionStats | Op::AttentionDsinks)
        });
        let first = wide.next();
        first.is_some() && !gated && first.into_iter().chain(wide).all(even)
    }
}

/// The sizes of an excerpt's program, where its own program's are these.
pub(crate) fn bind(excerpt: &Excerpt<'_>, bound: &Bound, program: &Program) -> Option<Bound> {
    let mut shapes = BTreeMap::new();
    for (id, tensor) in excerpt.inputs().iter().zip(program.tensors()) {
        let mut shape = bound.shape(*id)?.to_vec();
        if excerpt.flat && excerpt.flattens(*id) {
            let last = shape.pop()?;
            let columns = shape.last_mut()?;
            *columns = columns.checked_mul(last)?;
        }
        shapes.insert(tensor.name.clone(), shape);
    }
    // A capacity may be of no tensor, and so may a number of experts, and heads.
    let own = |op: &Op| match op {
        Op::Dispatch { .. } | Op::GroupedWgrad => 1,
        Op::View => 4,
        _ => 0,
    };
    let dims = program.nodes().iter().flat_map(|n| n.ty.dims.iter().take(own(&n.op)));
    let named = dims.filter_map(|dim| match dim {
        Dim::Sym(id) => program.symbols().get(id.index()),
        Dim::Lit(_) => None,
    });
    let sizes = named.filter_map(|symbol| {
        let mut all = excerpt.program.symbols().iter();
        let here = SymbolId::new(all.position(|s| s.name == symbol.name)?);
        Some((symbol.name.clone(), bound.dim(Dim::Sym(here))?))
    });
    program.bind(&sizes.collect(), &shapes).ok()
}

/// Whether an operation needs nothing but its operands' elements on this rank.
fn is_pointwise(op: &Op) -> bool {
    op.is_elementwise() || matches!(op, Op::Swiglu | Op::SwigluGrad)
}
