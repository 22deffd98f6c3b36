//! A plan in the making: families with their accesses, and the flows of data between them. Signals come later.

use super::select::Tensor;
use crate::graph::Extent;
use crate::ir::{
    Access, Arena, BufId, Buffer, Dim, DimId, Each, EdgeId, Entity, Expr, FamId, Family,
    InternalEdge, Leaf, Mode, Operand, Plan, Point, RoleKind, Schedule, Space, Var,
};
use crate::settings::Config;
use crate::target::Target;
use mk_abi::DType;
use mk_syntax::Placement;

/// Data that families write and others read, handed over word by word.
pub(super) struct Flow {
    /// Name of the signal.
    pub name: &'static str,
    /// Extents of its array.
    pub shape: Vec<Expr>,
    pub from: Vec<Writer>,
    /// Tasks that raise each word.
    pub count: Expr,
    pub to: Vec<Reader>,
}

/// A family that raises words of a flow.
pub(super) struct Writer {
    pub family: FamId,
    /// What it writes through; decides the completion.
    pub operand: Operand,
    /// The word that a task raises, and on which rank.
    pub word: Vec<Expr>,
    pub rank: Expr,
    pub each: Option<Each>,
    pub when: Option<Expr>,
}

/// A family that waits for words of a flow.
pub(super) struct Reader {
    pub family: FamId,
    /// What needs the data; decides who waits.
    pub operand: Operand,
    pub word: Vec<Expr>,
    pub each: Option<Each>,
    pub when: Option<Expr>,
}

/// The block of rows that a family's tasks cover: its shard, and the block in the shard.
#[derive(Clone)]
pub(super) struct Covers {
    pub family: FamId,
    pub shard: Expr,
    pub block: Expr,
}

/// The plan so far. Roles and signals are empty; [`Draft::kinds`] says where each family belongs.
pub(super) struct Draft {
    pub plan: Plan,
    pub kinds: Arena<FamId, RoleKind>,
    pub flows: Vec<Flow>,
    pub target: &'static Target,
    /// Shared-memory stages of a bulk copy.
    pub copy_stages: u32,
    edges: usize,
}

impl Draft {
    pub fn new(name: &str, axis: &str, config: &Config, target: &'static Target) -> Draft {
        let plan = Plan {
            name: name.into(),
            mesh: crate::ir::Mesh { axes: vec![(axis.into(), config.ranks)] },
            target: config.target.clone(),
            ..Plan::default()
        };
        Draft {
            plan,
            kinds: Arena::new(),
            flows: Vec::new(),
            target,
            copy_stages: config.copy_stages,
            edges: 0,
        }
    }

    /// SMs of the target, one CTA each.
    pub fn sms(&self) -> i64 {
        i64::from(self.target.sms)
    }

    pub fn world(&self) -> i32 {
        self.plan.mesh.size() as i32
    }

    /// The next edge id.
    pub fn edge(&mut self) -> EdgeId {
        self.edges += 1;
        EdgeId::new(self.edges - 1)
    }

    /// An extent under its own name.
    pub fn dim(&mut self, e: &Extent) -> Expr {
        let Some(name) = &e.symbol else { return Expr::Const(e.value) };
        let known = self.plan.dims.iter().find(|(_, d)| d.name == *name).map(|(id, _)| id);
        let id: DimId = known.unwrap_or_else(|| {
            let runtime_max = e.runtime_max;
            self.plan.dims.push(Dim { name: name.clone(), value: e.value, runtime_max })
        });
        Expr::Dim(id)
    }

    /// The part of an extent that rank `q` owns: `torch.chunk`'s, so the last ranks may own less, or nothing.
    pub fn shard(&mut self, e: &Extent, q: impl Into<Expr>) -> Expr {
        let world = self.world();
        if world == 1 {
            return self.dim(e);
        }
        if e.runtime_max.is_none() && shard_extent(e, world) * world == e.value {
            return Expr::Const(shard_extent(e, world));
        }
        let (part, whole) = (self.part(e), self.dim(e));
        Expr::Const(0).max(part.clone().min(whole - q.into() * part))
    }

    /// Elements of an extent that a rank owns, before the last ranks come short.
    pub fn part(&mut self, e: &Extent) -> Expr {
        let world = self.world();
        match e.runtime_max {
            Some(_) => self.dim(e).ceil_div(world),
            None => Expr::Const(shard_extent(e, world)),
        }
    }

    /// A dimension of a tensor on rank `q`.
    pub fn local(&mut self, t: &Tensor, dim: usize, q: impl Into<Expr>) -> Expr {
        match t.placement {
            Placement::Shard(d) if d == dim => self.shard(&t.shape[dim], q),
            _ => self.dim(&t.shape[dim]),
        }
    }

    /// A caller's tensor, in its local shape.
    pub fn tensor(&mut self, t: &Tensor, space: Space) -> BufId {
        let shape = (0..t.shape.len()).map(|d| self.local(t, d, Var::RANK)).collect();
        self.buffer(&t.name, space, t.dtype, shape, None)
    }

    pub fn buffer(
        &mut self,
        name: &str,
        space: Space,
        dtype: DType,
        shape: Vec<Expr>,
        pitch: Option<Expr>,
    ) -> BufId {
        let buffer = Buffer { name: name.into(), space, shared: false, dtype, shape, pitch };
        self.plan.buffers.push(buffer)
    }

    /// Adds a flow. Readers of one thing share its words.
    pub fn hand_over(&mut self, flow: Flow) {
        let families = |f: &Flow| f.from.iter().map(|w| w.family).collect::<Vec<_>>();
        let same = |f: &&mut Flow| f.name == flow.name && families(f) == families(&flow);
        match self.flows.iter_mut().find(same) {
            Some(known) => known.to.extend(flow.to),
            None => self.flows.push(flow),
        }
    }

    /// Adds a family without signals; internal edges get their ids here.
    pub fn family(
        &mut self,
        name: &str,
        kind: RoleKind,
        leaf: Leaf,
        domain: Vec<(&str, Expr)>,
        order: Vec<Expr>,
        accesses: Vec<Access>,
    ) -> FamId {
        // Families of one role that share a ring have the same barriers.
        let same = self
            .plan
            .families
            .iter()
            .find(|(id, f)| f.leaf.shares_ring(&leaf) && self.kinds[*id] == kind)
            .map(|(_, f)| f.edges.clone());
        let edges = match same {
            Some(edges) => edges,
            None => {
                let names = leaf.contract().edges.into_iter().map(|e| e.name);
                names.map(|name| InternalEdge { edge: self.edge(), name: name.into() }).collect()
            }
        };
        self.kinds.push(kind);
        self.plan.families.push(Family {
            name: name.into(),
            role: crate::ir::RoleId::new(0),
            leaf,
            domain: domain.into_iter().map(|(n, e)| (n.to_string(), e)).collect(),
            order,
            schedule: Schedule::Static,
            inner: None,
            accesses,
            waits: Vec::new(),
            posts: Vec::new(),
            edges,
        })
    }
}

/// The most elements of an extent that a rank owns.
pub(super) fn shard_extent(e: &Extent, world: i32) -> i32 {
    (e.capacity() + world - 1) / world
}

/// A read of the own rank's memory at the start of a task.
pub(super) fn read(operand: Operand, buffer: BufId, region: Vec<(Expr, Expr)>) -> Access {
    access(operand, Mode::Read, buffer, region, Point::Start)
}

/// A write to the own rank's memory at the end of a task.
pub(super) fn write(operand: Operand, buffer: BufId, region: Vec<(Expr, Expr)>) -> Access {
    access(operand, Mode::Write, buffer, region, Point::End)
}

fn access(
    operand: Operand,
    mode: Mode,
    buffer: BufId,
    region: Vec<(Expr, Expr)>,
    at: Point,
) -> Access {
    Access {
        operand,
        mode,
        buffer,
        rank: Var::RANK.into(),
        region,
        version: Expr::Const(0),
        at,
        each: None,
        when: None,
    }
}
