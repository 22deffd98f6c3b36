//! What every part of the emitter needs: the plan, its layout, and how to say an address.

use super::{
    EmitError, Result,
    layout::{At, Layout, layout},
    maps::Maps,
    nodes,
    types::{Options, dtype_name},
};
use mk_abi::DType;
use mk_plan::{
    Access, BinOp, BufId, CPrinter, Each, Entity, Expr, FamId, Family, Operand, Plan, Points,
    SigId, row_dim, target::Target,
};
use std::collections::BTreeSet;

/// Shared memory beside a leaf's contract: mbarriers, at most.
const BARRIER_BYTES: u32 = 1024;

pub(super) struct Emitter<'a> {
    pub plan: &'a Plan,
    pub target: &'static Target,
    pub points: &'a Points<'a>,
    pub layout: Layout,
    pub maps: Maps,
    pub options: Options,
    /// The signals by which ranks announce themselves.
    entries: BTreeSet<SigId>,
    /// The one by which nodes do.
    pub node_entry: Option<SigId>,
}

impl<'a> Emitter<'a> {
    pub fn new(
        plan: &'a Plan,
        (points, target): (&'a Points<'a>, &'static Target),
        options: Options,
    ) -> Result<Self> {
        let enter = plan.families.values().filter(|f| f.leaf.enters());
        let entries = enter.flat_map(|f| &f.posts).map(|p| p.signal).collect();
        let (layout, maps) = (layout(plan, points)?, Maps::default());
        let node_entry = nodes::entered(plan);
        Ok(Emitter { plan, target, points, layout, maps, options, entries, node_entry })
    }

    /// An expression of a family as C.
    pub fn c(&self, f: &Family, each: Option<&Each>, e: &Expr) -> String {
        CPrinter::new(self.plan, Some(f)).with_each(each).print(e)
    }

    /// A buffer's extent in a dimension, as an expression on the rank that runs the task.
    pub fn extent(&self, buffer: BufId, dim: usize) -> Expr {
        self.plan.buffers[buffer].shape[dim].clone()
    }

    /// What an expression is in every launch and on every rank, where that is one number.
    pub fn number(&self, e: &Expr) -> Option<i32> {
        match e {
            Expr::Const(n) => Some(*n),
            Expr::Dim(d) => {
                let dim = &self.plan.dims[*d];
                dim.runtime_max.is_none().then_some(dim.value)
            }
            _ => None,
        }
    }

    /// Elements from one row of this rank's part to the next.
    pub fn pitch(&self, buffer: BufId) -> Expr {
        let b = &self.plan.buffers[buffer];
        b.pitch.as_ref().or(b.shape.last()).cloned().unwrap_or(Expr::Const(0))
    }

    /// All dimensions but the last, flattened to a row number. Leading extents must not depend on the rank, because the
    /// buffer may be another rank's.
    pub fn row(&self, a: &Access) -> Expr {
        self.flat(a, 0, a.region.len() - 1)
    }

    /// Dimensions `from` to `to` of an access, flattened.
    pub fn flat(&self, a: &Access, from: usize, to: usize) -> Expr {
        let mut row = Expr::Const(0);
        for (d, (base, _)) in a.region[..to].iter().enumerate().skip(from) {
            row = Expr::bin(
                BinOp::Add,
                Expr::bin(BinOp::Mul, row, self.extent(a.buffer, d)),
                base.clone(),
            );
        }
        row
    }

    /// A condition of an access to rows, as C, and that its row is there where each rank has its own number of them.
    pub fn there(&self, f: &Family, each: Option<&Each>, a: &Access) -> String {
        let when = a.when.as_ref().map(|w| self.c(f, each, w));
        let own = self.plan.buffers[a.buffer].own_rows.then(|| {
            let row = self.c(f, each, &a.region[0].0);
            format!("static_cast<u32>({row}) < params.header.own_rows")
        });
        match (when, own) {
            (Some(when), Some(own)) => format!("({when}) && {own}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "true".into(),
        }
    }

    /// What the hooks of a leaf may name: the rank, and dimensions that come with each launch.
    pub fn locals(&self) -> String {
        let rank = "[[maybe_unused]] const int rank = params.header.rank;".to_string();
        let dims = self.plan.dims.values().filter(|d| d.runtime_max.is_some()).enumerate();
        let dims = dims.map(|(i, d)| {
            let value = format!("static_cast<int>(params.header.dims[{i}])");
            format!("[[maybe_unused]] const int kDim_{} = {value};", d.name)
        });
        [rank].into_iter().chain(dims).chain(self.tables()).collect::<Vec<_>>().join("\n    ")
    }

    /// Bytes from one row to the next; the same on every rank.
    pub fn pitch_bytes(&self, place: &str, buffer: BufId) -> Result<u64> {
        let pitch = &self.layout.buffers[buffer].pitch;
        if pitch.iter().any(|p| *p != pitch[0]) {
            let what = format!("{buffer}'s rows have different lengths on different ranks");
            return EmitError::refuse(place, what);
        }
        Ok(pitch[0].max(0) as u64 * self.plan.buffers[buffer].dtype.size_bytes())
    }

    /// Bytes from one row of this rank's part to the next, as C.
    pub fn own_pitch_bytes(&self, buffer: BufId) -> String {
        let row = CPrinter::new(self.plan, None).print(&self.pitch(buffer));
        format!("bytes_of({row}, {})", self.plan.buffers[buffer].dtype.size_bytes())
    }

    /// Bytes from one row of a region of this rank to the next: rows lie along the region's only long dimension before
    /// the last one.
    pub fn row_pitch_bytes(&self, a: &Access) -> String {
        let row = row_dim(a).unwrap_or(0);
        let between = (row + 1..a.region.len().saturating_sub(1)).map(|d| self.extent(a.buffer, d));
        let all = between.fold(self.pitch(a.buffer), |pitch, n| pitch * n);
        let size = self.plan.buffers[a.buffer].dtype.size_bytes();
        format!("bytes_of({}, {size})", CPrinter::new(self.plan, None).print(&all))
    }

    /// Address of a buffer's first byte on a rank, as C.
    pub fn base(&self, buffer: BufId, rank: &str) -> String {
        match self.layout.buffers[buffer].at {
            At::Tensor(i) => format!("params.tensors[{i}]"),
            At::Symmetric(_) => format!("sym({rank}) + kBuf{}", buffer.index()),
            At::Scratch(_) => format!("params.header.scratch + kBuf{}", buffer.index()),
            At::Net(_) => format!("params.header.net + kBuf{}", buffer.index()),
        }
    }

    /// Local shapes of the caller's tensors on a rank.
    pub fn tensor_shapes(&self, rank: usize) -> Vec<Vec<u64>> {
        let tensors = self.layout.buffers.values().filter(|p| matches!(p.at, At::Tensor(_)));
        tensors.map(|p| p.shape[rank].iter().map(|n| (*n).max(0) as u64).collect()).collect()
    }

    /// Dynamic shared memory of the launch.
    pub fn smem_bytes(&self) -> u32 {
        let leaves = self.plan.families.values().map(|f| f.leaf.contract().smem_bytes);
        leaves.max().unwrap_or(0) + BARRIER_BYTES
    }

    /// Number of tasks of a family, which must be the same on every rank.
    pub fn n_tasks(&self, id: FamId) -> Result<u32> {
        let mut first = None;
        for rank in 0..self.plan.mesh.size() as usize {
            let n = self.points.tasks(id, rank, 1)?.len() as u32;
            if *first.get_or_insert(n) != n {
                let what = "the number of tasks depends on the rank";
                return EmitError::refuse(id.to_string(), what);
            }
        }
        Ok(first.unwrap_or(0))
    }

    /// The one access that names an operand, which is made unconditionally.
    ///
    /// # Errors
    /// [`EmitError::Refused`] where there are several, or it has a condition.
    pub fn access<'f>(&self, f: &'f Family, operand: Operand) -> Result<&'f Access> {
        let mut found = f.accesses.iter().filter(|a| a.operand == operand);
        match (found.next(), found.next()) {
            (Some(a), None) if a.when.is_none() => Ok(a),
            _ => {
                let what = format!("operand `{operand}` must be one unconditional access");
                EmitError::refuse(&f.name, what)
            }
        }
    }

    /// The element type that some operands of a family have in common.
    ///
    /// # Errors
    /// [`EmitError::Internal`] where they have several: [`Plan::check_elements`] comes first.
    pub fn one_type(&self, id: FamId, of: impl Fn(Operand) -> bool) -> Result<DType> {
        let f = &self.plan.families[id];
        let mut types =
            f.accesses.iter().filter(|a| of(a.operand)).map(|a| self.plan.buffers[a.buffer].dtype);
        let Some(first) = types.next() else {
            let what = format!("{id} has none of the operands that are asked for");
            return Err(EmitError::internal("emit/context.rs", what));
        };
        if types.any(|t| t != first) {
            let what = format!("operands of {id} have several types");
            return Err(EmitError::internal("emit/context.rs", what));
        }
        Ok(first)
    }

    /// [`Self::one_type`], as the library names it.
    ///
    /// # Errors
    /// As that; [`EmitError::Unsupported`] for types that no tile computes with.
    pub fn one_dtype(&self, id: FamId, of: impl Fn(Operand) -> bool) -> Result<&'static str> {
        dtype_name(&self.plan.families[id].name, self.one_type(id, of)?)
    }

    /// Whether some dimension comes with each launch.
    pub fn runtime(&self) -> bool {
        self.plan.runtime_dim().is_some()
    }

    /// Whether a signal is the one by which ranks announce themselves.
    pub fn is_entry(&self, signal: SigId) -> bool {
        self.entries.contains(&signal)
    }

    /// The signal by which ranks announce themselves, where they do.
    pub fn entered(&self) -> Option<SigId> {
        let enter = self.plan.families.values().filter(|f| f.leaf.enters());
        enter.flat_map(|f| &f.posts).map(|p| p.signal).next()
    }
}
