//! What every part of the emitter needs: the plan, its layout, and how to say an address.

use super::{
    BARRIER_BYTES, EmitError, Options,
    layout::{At, Layout, layout},
    maps::Maps,
    trace,
};
use crate::ir::{
    Access, BinOp, BufId, C_PRELUDE, CPrinter, Each, Entity, Expr, FamId, Family, Leaf, Plan,
    Points, SigId,
};
use minijinja::{Value, context};

pub(super) struct Emitter<'a> {
    pub plan: &'a Plan,
    pub points: &'a Points<'a>,
    pub layout: Layout,
    pub maps: Maps,
    pub options: Options,
}

impl<'a> Emitter<'a> {
    pub fn new(
        plan: &'a Plan,
        points: &'a Points<'a>,
        options: Options,
    ) -> Result<Self, EmitError> {
        Ok(Emitter { plan, points, layout: layout(plan, points)?, maps: Maps::default(), options })
    }

    /// An expression of a family as C.
    pub fn c(&self, f: &Family, each: Option<&Each>, e: &Expr) -> String {
        CPrinter::new(self.plan, Some(f)).with_each(each).print(e)
    }

    /// A buffer's extent in a dimension, as an expression on the rank that runs the task.
    pub fn extent(&self, buffer: BufId, dim: usize) -> Expr {
        self.plan.buffers[buffer].shape[dim].clone()
    }

    /// Elements from one row of the own rank's part to the next.
    pub fn pitch(&self, buffer: BufId) -> Expr {
        let b = &self.plan.buffers[buffer];
        b.pitch.as_ref().or(b.shape.last()).cloned().unwrap_or(Expr::Const(0))
    }

    /// All dimensions but the last, flattened to a row number. Leading extents must not depend on the rank, because the
    /// buffer may be another rank's.
    pub fn row(&self, a: &Access) -> Expr {
        let last = a.region.len() - 1;
        let mut row = Expr::Const(0);
        for (d, (base, _)) in a.region[..last].iter().enumerate() {
            row = Expr::bin(
                BinOp::Add,
                Expr::bin(BinOp::Mul, row, self.extent(a.buffer, d)),
                base.clone(),
            );
        }
        row
    }

    /// What the hooks of a leaf may name: the rank, and dimensions that come with each launch.
    pub fn locals(&self) -> String {
        let rank = "[[maybe_unused]] const int rank = params.header.rank;".to_string();
        let dims = self.plan.dims.values().filter(|d| d.runtime_max.is_some()).enumerate();
        let dims = dims.map(|(i, d)| {
            let value = format!("static_cast<int>(params.header.dims[{i}])");
            format!("[[maybe_unused]] const int kDim_{} = {value};", d.name)
        });
        [rank].into_iter().chain(dims).collect::<Vec<_>>().join("\n    ")
    }

    /// Bytes from one row to the next; the same on every rank.
    pub fn pitch_bytes(&self, place: &str, buffer: BufId) -> Result<u64, EmitError> {
        let pitch = &self.layout.buffers[buffer].pitch;
        if pitch.iter().any(|p| *p != pitch[0]) {
            let what = format!("{buffer}'s rows have different lengths on different ranks");
            return Err(EmitError::unsupported(place, what));
        }
        Ok(pitch[0].max(0) as u64 * self.plan.buffers[buffer].dtype.size_bytes())
    }

    /// Bytes from one row of the own rank's part to the next, as C.
    pub fn own_pitch_bytes(&self, buffer: BufId) -> String {
        let row = CPrinter::new(self.plan, None).print(&self.pitch(buffer));
        format!("bytes_of({row}, {})", self.plan.buffers[buffer].dtype.size_bytes())
    }

    /// Address of a buffer's first byte on a rank, as C.
    pub fn base(&self, buffer: BufId, rank: &str) -> String {
        match self.layout.buffers[buffer].at {
            At::Tensor(i) => format!("params.tensors[{i}]"),
            At::Symmetric(_) => format!("sym({rank}) + kBuf{}", buffer.index()),
            At::Scratch(_) => format!("params.header.scratch + kBuf{}", buffer.index()),
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
    pub fn n_tasks(&self, id: FamId) -> Result<u32, EmitError> {
        let mut first = None;
        for rank in 0..self.plan.mesh.size() as usize {
            let n = self.points.tasks(id, rank, 1)?.len() as u32;
            if *first.get_or_insert(n) != n {
                let what = "the number of tasks depends on the rank";
                return Err(EmitError::unsupported(id.to_string(), what));
            }
        }
        Ok(first.unwrap_or(0))
    }

    /// The signal by which ranks announce themselves, where they do.
    pub fn entered(&self) -> Option<SigId> {
        let enter = self.plan.families.values().filter(|f| f.leaf == Leaf::Enter);
        enter.flat_map(|f| &f.posts).map(|p| p.signal).next()
    }

    /// What the kernel template is rendered with.
    pub fn kernel(&self, roles: Vec<Value>, smem_bytes: u32, gate: Option<Value>) -> Value {
        let dims: Vec<_> = self
            .plan
            .dims
            .values()
            .map(|d| {
                let (name, runtime) = (d.name.clone(), d.runtime_max.is_some());
                context! { name, value => d.value, runtime }
            })
            .collect();
        let signals: Vec<_> = self
            .plan
            .signals
            .iter()
            .map(|(id, s)| context! { id => id.index(), name => s.name.clone(), word => self.layout.signals[id] })
            .collect();
        let buffers: Vec<_> = self
            .plan
            .buffers
            .iter()
            .map(|(id, b)| {
                let (kind, offset) = match self.layout.buffers[id].at {
                    At::Tensor(i) => ("tensor", u64::from(i)),
                    At::Symmetric(o) => ("symmetric", o),
                    At::Scratch(o) => ("scratch", o),
                };
                context! { id => id.index(), name => b.name.clone(), kind, offset }
            })
            .collect();
        let mut edges: Vec<_> = self.plan.families.values().flat_map(Family::edge_ids).collect();
        edges.sort_unstable();
        edges.dedup();
        let edges: Vec<_> = edges.iter().map(|e| e.index()).collect();
        let enter = self
            .plan
            .families
            .values()
            .filter(|f| f.leaf == Leaf::Enter)
            .flat_map(|f| &f.posts)
            .map(|p| {
                let traced = self.options.trace.then(|| trace::enter(self.plan, p.edge));
                context! { edge => p.edge.to_string(), signal => p.signal.index(), traced }
            })
            .collect::<Vec<_>>();
        let stalls = match self.options.trace {
            true => trace::stalls(self.plan),
            false => Vec::new(),
        };
        context! {
            name => self.plan.name.clone(),
            prelude => C_PRELUDE,
            world => self.plan.mesh.size(),
            n_maps => self.maps.len(),
            n_tensors => self.layout.tensors.len(),
            maps => self.maps.comments(),
            smem_bytes,
            block => super::BLOCK_THREADS,
            trace => self.options.trace,
            gate,
            entered => self.entered().map_or("kNoEntry".into(), |s| format!("kSig{}", s.index())),
            dims, signals, buffers, edges, enter, roles, stalls,
        }
    }
}
