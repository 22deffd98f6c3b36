//! A plan in the making: families with their accesses, and the flows of data between them. Signals come later.

mod flow;

pub(in crate::passes) use flow::{Arrival, Flow, FlowId, Reader, Source, Writer};

use super::{
    shape::{
        extents::Extents,
        ranks::{Nodes, own_rank},
        tensor::Tensor,
    },
    world::World,
};
use crate::graph::Extent;
use crate::settings::Config;
use mk_abi::DType;
use mk_plan::target::Target;
use mk_plan::{
    Access, Arena, BinOp, BufId, Buffer, Each, EdgeId, Entity, Expr, FamId, Family, InternalEdge,
    Leaf, Mode, Operand, Plan, Point, RoleKind, Routed, Schedule, Space, TabId, Table, TableSource,
    Var,
};

/// The rows of tiles that a family's tasks cover: the shard, and the block in the shard.
#[derive(Clone)]
pub(in crate::passes) struct TileRows {
    pub family: FamId,
    pub shard: Expr,
    pub block: Expr,
    /// Those that have some; all where it is not said.
    pub when: Option<Expr>,
}

/// Rows that are there when a word says so, one word for each block of them.
struct WrittenRows {
    buffer: BufId,
    /// The dimension of the buffer that rows lie along.
    along: usize,
    /// Those of which each element has words of its own.
    by: &'static [usize],
    done: FlowId,
    height: i32,
    blocks: i32,
}

/// The plan so far. Roles and signals are empty; [`Draft::kinds`] says where each family belongs.
pub(in crate::passes) struct Draft {
    pub plan: Plan,
    /// Its dimensions.
    pub extents: Extents,
    pub kinds: Arena<FamId, RoleKind>,
    pub flows: Arena<FlowId, Flow>,
    /// Flows that have a reader, in the order in which they were first read: that of their signals.
    pub flow_order: Vec<FlowId>,
    /// Memory that a flow says is there, in blocks of rows.
    made: Vec<WrittenRows>,
    /// Families that come before all others of their role, the foremost last.
    pub first: Vec<FamId>,
    pub target: &'static Target,
    /// The ranks that share the work along the kernel's first axis, by node; and along the others.
    pub nodes: Nodes,
    pub further: Vec<Nodes>,
    /// Shared-memory stages of a bulk copy.
    pub copy_stages: u32,
    /// Bytes that a rank sends for each floating-point operation of its own, where data that comes meanwhile is worth
    /// few CTAs.
    pub bytes_per_flop: Option<f64>,
    edges: usize,
}

impl Draft {
    pub fn new(name: &str, world: &World, config: &Config) -> Draft {
        let plan = Plan {
            name: name.into(),
            mesh: world.mesh.clone(),
            target: config.target.clone(),
            nic: world.nic,
            ..Plan::default()
        };
        Draft {
            plan,
            extents: Extents::new(world.nodes[0], world.nodes.clone()),
            kinds: Arena::new(),
            flows: Arena::new(),
            flow_order: Vec::new(),
            made: Vec::new(),
            first: Vec::new(),
            target: world.target,
            nodes: world.nodes[0],
            further: world.nodes[1..].to_vec(),
            copy_stages: config.copy_stages,
            bytes_per_flop: None,
            edges: 0,
        }
    }

    /// SMs of the target, one CTA each.
    pub fn sms(&self) -> i64 {
        i64::from(self.target.sms)
    }

    /// Ranks that share the work, along the kernel's first axis.
    pub fn ranks(&self) -> i32 {
        self.nodes.group.size
    }

    /// Those along an axis.
    pub fn along(&self, axis: usize) -> Nodes {
        let further = axis.checked_sub(1).and_then(|i| self.further.get(i));
        further.copied().unwrap_or(self.nodes)
    }

    /// Those along each axis.
    pub fn axes(&self) -> impl Iterator<Item = Nodes> + '_ {
        std::iter::once(self.nodes).chain(self.further.iter().copied())
    }

    /// The next edge id.
    pub fn edge(&mut self) -> EdgeId {
        self.edges += 1;
        EdgeId::new(self.edges - 1)
    }

    /// An extent under its own name.
    pub fn dim(&mut self, e: &Extent) -> Expr {
        self.extents.dim(e)
    }

    /// A dimension of a tensor on this rank.
    pub fn own(&mut self, t: &Tensor, dim: usize) -> Expr {
        self.extents.own(t, dim)
    }

    /// A dimension of a tensor at place `q`.
    pub fn local(&mut self, t: &Tensor, dim: usize, q: impl Into<Expr>) -> Expr {
        self.extents.local(t, dim, q)
    }

    /// A caller's tensor, in its local shape.
    pub fn tensor(&mut self, t: &Tensor, space: Space) -> BufId {
        let shape = self.extents.local_shape(t);
        let buffer = self.buffer(&t.name, space, t.dtype, shape, None);
        // What a kernel makes of them has room for the most.
        let given = matches!(space, Space::In | Space::Out);
        self.plan.buffers[buffer].own_rows = given && t.own_rows();
        buffer
    }

    pub fn buffer(
        &mut self,
        name: &str,
        space: Space,
        dtype: DType,
        shape: Vec<Expr>,
        pitch: Option<Expr>,
    ) -> BufId {
        let buffer = Buffer {
            name: name.into(),
            space,
            shared: false,
            own_rows: false,
            dtype,
            shape,
            pitch,
        };
        self.plan.buffers.push(buffer)
    }

    /// A table of integers in memory that tasks are to fill.
    pub fn table(
        &mut self,
        name: &str,
        shape: &[i32],
        source: TableSource,
        routed: Option<Routed>,
    ) -> (TabId, BufId) {
        let extents = shape.iter().map(|n| Expr::from(*n)).collect();
        let memory = self.buffer(name, Space::Scratch, DType::I32, extents, None);
        let shape = shape.iter().map(|n| *n as u32).collect();
        let table = Table { name: name.into(), shape, source, stored: Some(memory), routed };
        (self.plan.tables.push(table), memory)
    }

    /// Has a family's tasks fill tables, and one word, named `flow`, say when all `count` of them have.
    pub fn filled(
        &mut self,
        (name, flow): (&str, &'static str),
        leaf: Leaf,
        domain: Vec<(&str, Expr)>,
        count: Expr,
        touched: impl IntoIterator<Item = impl Into<Source>>,
    ) -> FlowId {
        let family = self.family(name, RoleKind::Compute, leaf, domain, vec![], touched);
        let by = Writer::new(family, Operand::Dst, vec![0.into()]);
        self.flow(Flow::new(flow, vec![1.into()], count, vec![by]))
    }

    /// Adds a flow without readers. One that stays without has no signal.
    pub fn flow(&mut self, flow: Flow) -> FlowId {
        self.flows.push(flow)
    }

    /// From here on, readers of rows of this memory wait for the words of their blocks.
    pub fn made(&mut self, buffer: BufId, along: usize, done: FlowId, height: i32, blocks: i32) {
        self.made_by(buffer, (along, &[]), done, height, blocks);
    }

    /// Puts a family that reads `memory` at the front of its role, behind families that are there already. The families
    /// that make `memory` come before it. Sends to other nodes are then before all waits for other nodes.
    pub fn leaves_first(&mut self, family: FamId, memory: BufId) {
        self.first.insert(0, family);
        for made in self.made.iter().filter(|made| made.buffer == memory) {
            let makers = self.flows[made.done].from.iter().map(|w| w.family);
            for maker in makers.filter(|maker| self.kinds[*maker] == self.kinds[family]) {
                if !self.first.contains(&maker) {
                    self.first.insert(1, maker);
                }
            }
        }
    }

    /// The same, where each element of other dimensions has words of its own.
    pub fn made_by(
        &mut self,
        buffer: BufId,
        (along, by): (usize, &'static [usize]),
        done: FlowId,
        height: i32,
        blocks: i32,
    ) {
        self.made.push(WrittenRows { buffer, along, by, done, height, blocks });
    }

    /// The words of rows that an access reads.
    fn awaited(&self, access: &Access) -> Option<Arrival> {
        let made = self.made.iter().find(|m| m.buffer == access.buffer)?;
        let (at, len) = access.region.get(made.along).filter(|_| access.mode == Mode::Read)?;
        let of = || made.by.iter().filter_map(|d| Some(access.region.get(*d)?.0.clone()));
        let word = |block: Expr| of().chain([block]).collect::<Vec<_>>();
        let first = at.clone() / made.height;
        let (step, most) = (multiple(at, made.height), most(len));
        if most.is_some_and(|most| most <= step) {
            return Some(Arrival::new(made.done, word(first)));
        }
        // Fewer where rows end: then the last one again.
        let last = ((at.clone() + len.clone() - 1) / made.height).max(0);
        let extent = most.map_or(made.blocks, |most| (most / made.height + 2).min(made.blocks));
        let word = word((first + Var::EACH).min(last));
        let each = Some(Each { var: "q".into(), extent: extent.into() });
        Some(Arrival { flow: made.done, word, each, when: None })
    }

    /// Adds a reader to a flow.
    pub fn read(&mut self, flow: FlowId, reader: Reader) {
        if !self.flow_order.contains(&flow) {
            self.flow_order.push(flow);
        }
        self.flows[flow].to.push(reader);
    }

    /// Adds a family, which reads the flows of its sources; internal edges get their ids here.
    pub fn family(
        &mut self,
        name: &str,
        kind: RoleKind,
        leaf: Leaf,
        domain: Vec<(&str, Expr)>,
        order: Vec<Expr>,
        touched: impl IntoIterator<Item = impl Into<Source>>,
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
        let id = self.plan.families.next_id();
        let (mut accesses, mut waited) = (Vec::new(), Vec::<FlowId>::new());
        for source in touched {
            let Source { access, mut arrivals } = source.into();
            // Factors that are made beside rows are there with them.
            let beside = self.made.iter().any(|m| m.buffer == access.buffer && m.along > 0);
            let there = |a: &Arrival| beside && waited.contains(&a.flow);
            arrivals.extend(self.awaited(&access).filter(|a| !there(a)));
            waited.extend(arrivals.iter().map(|a| a.flow));
            for arrival in arrivals {
                let (flow, reader) = arrival.reader(id, &access);
                self.read(flow, reader);
            }
            accesses.push(access);
        }
        self.plan.families.push(Family {
            name: name.into(),
            role: mk_plan::RoleId::new(0),
            leaf,
            domain: domain.into_iter().map(|(n, e)| (n.to_string(), e)).collect(),
            order,
            schedule: Schedule::Static,
            inner: None,
            positions: None,
            accesses,
            waits: Vec::new(),
            posts: Vec::new(),
            edges,
        })
    }
}

/// The greatest divisor of `of` that an expression is seen to be a multiple of.
fn multiple(e: &Expr, of: i32) -> i32 {
    let gcd = |mut a: i32, mut b: i32| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    match e {
        Expr::Const(n) => gcd(of, n.saturating_abs()),
        Expr::Bin(BinOp::Add | BinOp::Sub, a, b) => gcd(multiple(a, of), multiple(b, of)),
        Expr::Bin(BinOp::Mul, a, b) => {
            let (a, b) = (multiple(a, of), multiple(b, of));
            gcd(of, a.saturating_mul(b))
        }
        _ => 1,
    }
}

/// What an expression is seen not to exceed.
fn most(e: &Expr) -> Option<i32> {
    match e {
        Expr::Const(n) => Some(*n),
        Expr::Bin(BinOp::Min, a, b) => match (most(a), most(b)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        _ => None,
    }
}

/// A read of this rank's memory at the start of a task.
pub(in crate::passes) fn read(
    operand: Operand,
    buffer: BufId,
    region: Vec<(Expr, Expr)>,
) -> Access {
    access(operand, Mode::Read, buffer, region, Point::Start)
}

/// A write to this rank's memory at the end of a task.
pub(in crate::passes) fn write(
    operand: Operand,
    buffer: BufId,
    region: Vec<(Expr, Expr)>,
) -> Access {
    access(operand, Mode::Write, buffer, region, Point::End)
}

/// The same access on each of several ranks, where there are some.
pub(in crate::passes) fn on_each(a: Access, ranks: Option<(Expr, Each)>) -> Access {
    match ranks {
        Some((rank, each)) => Access { rank, each: Some(each), ..a },
        None => a,
    }
}

/// The one of a dimension that is at `at`.
pub(in crate::passes) fn one(at: impl Into<Expr>) -> (Expr, Expr) {
    (at.into(), 1.into())
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
        rank: own_rank(),
        region,
        version: Expr::Const(0),
        at,
        each: None,
        when: None,
    }
}
