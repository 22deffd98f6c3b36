//! A gather and a product over nodes: rows go over the network once to each node, by the cards of ranks of the same
//! place, and on from there inside it.
//!
//! The form: a rank stages its rows in net memory and sends them to the ranks of the same place (its rail) in other
//! nodes; a word of the network is raised behind them, and relayed to the GPU's own words by the few CTAs that may poll
//! it. What has come is forwarded to the neighbours, as own rows are pushed to them. The product has rows from three
//! places: its own rank's, the rail's in net memory, and all others, which a neighbour has brought. Staged rows are
//! overwritten when the card has delivered them: a credit, a launch back.

use super::harness::{self, Data, no_tables, right, spoilt_are_rejected, verified};
use crate::graph::Extent;
use crate::passes::{
    draft::{Draft, Flow, FlowId, Reader, Source, Writer, read, write},
    shape::{
        ranks::{Nodes, block_rows},
        tensor::{Tensor, cuts},
    },
};
use mk_abi::DType;
use mk_plan::{
    ALayout, Access, Agent, BLayout, BinOp, BufId, Consumers, CopyVia, Each, EdgeId, Entity, Expr,
    Leaf, MmaTile, Nic, NicOrdering, Operand, Plan, RoleKind, Space, Store, Var,
};
use mk_prove::valid;
use mk_syntax::Placement;

/// Rows of a chunk and of a tile, and columns of a tile.
const HEIGHT: i32 = 16;
const WIDTH: i32 = 64;

#[derive(Clone, Copy)]
struct Net {
    /// Ranks, and those of a node.
    world: i32,
    local: i32,
    rows: i32,
    depth: i32,
    columns: i32,
    ordering: NicOrdering,
    lanes: u32,
}

const TWO_NODES: Net = Net {
    world: 4,
    local: 2,
    rows: 102,
    depth: 72,
    columns: 72,
    ordering: NicOrdering::InOrder,
    lanes: 2,
};

/// What the families share.
struct Memory {
    a: Tensor,
    shard: BufId,
    /// Own rows, for the card.
    send: BufId,
    /// What other nodes sent, by node.
    recv: BufId,
    /// What neighbours brought, by source rank.
    all: BufId,
}

/// What has come from another node, by chunk: which node, and which rank of it.
struct Came {
    node: Expr,
    rank: Expr,
    chunk: Expr,
}

impl Net {
    fn nodes(&self) -> Nodes {
        harness::world(self.world).by_node(self.local).expect("whole nodes")
    }

    /// Rows of a rank, at most, and their chunks.
    fn capacity(&self) -> i32 {
        (self.rows + self.world - 1) / self.world
    }

    fn chunks(&self) -> i32 {
        (self.capacity() + HEIGHT - 1) / HEIGHT
    }

    fn draft(&self) -> Draft {
        let mut d = harness::draft("two_nodes", self.world as u32);
        let Net { ordering, lanes, .. } = *self;
        let local = Some(self.local as u32);
        harness::on_nodes(&mut d, Nic { ordering, local, fifo: 3, lanes });
        let named =
            |name: &str, value| Extent { symbol: Some(name.into()), ..Extent::fixed(value) };
        let (m, k, n) = (named("M", self.rows), named("K", self.depth), named("N", self.columns));
        let tensor = |name: &str, shape: [&Extent; 2], placement| Tensor {
            name: name.into(),
            dtype: DType::Bf16,
            shape: shape.map(Clone::clone).to_vec(),
            cuts: cuts(&[placement], &[self.world]),
        };
        let a = tensor("a", [&m, &k], Placement::Shard(0));
        let b = tensor("b", [&k, &n], Placement::Replicate);
        let c = tensor("c", [&m, &n], Placement::Replicate);
        let shard = d.tensor(&a, Space::In);
        let (b, c) = (d.tensor(&b, Space::In), d.tensor(&c, Space::Out));
        let mut buffer = |name: &str, space: Space, of: Option<i32>| {
            let mut shape = vec![self.capacity().into(), self.depth.into()];
            of.into_iter().for_each(|n| shape.insert(0, n.into()));
            d.buffer(name, space, DType::Bf16, shape, None)
        };
        let send = buffer("send", Space::Net, None);
        let recv = buffer("recv", Space::Net, Some(self.nodes().count()));
        let all = buffer("a_all", Space::Workspace, Some(self.world));
        let m = Memory { a, shard, send, recv, all };
        let wired = self.send(&mut d, &m);
        let relayed = self.relay(&mut d, wired);
        let arrived = self.bring(&mut d, &m, relayed);
        self.multiply(&mut d, &m, (b, c), relayed, arrived);
        d
    }

    /// Rows of a chunk of a rank.
    fn chunk(&self, d: &mut Draft, m: &Memory, chunk: &Expr, of: impl Into<Expr>) -> (Expr, Expr) {
        let rows = d.local(&m.a, 0, of.into());
        (chunk.clone() * HEIGHT, block_rows(rows, chunk.clone(), HEIGHT))
    }

    fn wide(&self) -> (Expr, Expr) {
        (0.into(), self.depth.into())
    }

    fn copy(&self) -> Leaf {
        CopyVia::Bulk.leaf(4)
    }

    /// The own node.
    fn home(&self) -> Expr {
        Expr::from(Var::RANK) / self.local
    }

    /// What a task sees whose first loop is over other nodes, and the second over chunks.
    fn came(&self) -> Came {
        let [m, chunk] = [0, 1].map(|i| Expr::from(Var::domain(i)));
        let node = (self.home() + (m + 1)) % self.nodes().count();
        let place = Expr::from(Var::RANK) % self.local;
        Came { rank: node.clone() * self.local + place, node, chunk }
    }

    /// Own rows to net memory, and from there to the rail.
    fn send(&self, d: &mut Draft, m: &Memory) -> FlowId {
        let others = Expr::from(self.nodes().count() - 1);
        let i = Expr::from(Var::domain(0));
        let rows = self.chunk(d, m, &i, Var::RANK);
        let region = vec![rows, self.wide()];
        let accesses =
            [read(Operand::Src, m.shard, region.clone()), write(Operand::Dst, m.send, region)];
        let domain = vec![("i", self.chunks().into())];
        let stage = d.family("stage", RoleKind::InterSend, self.copy(), domain, vec![], accesses);
        let done = Writer::new(stage, Operand::Dst, vec![i.clone()]);
        let shape = vec![self.chunks().into()];
        let staged = d.flow(Flow::new("staged", shape, 1.into(), vec![done]));

        let [node, chunk] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let rows = self.chunk(d, m, &chunk, Var::RANK);
        let src = read(Operand::Src, m.send, vec![rows.clone(), self.wide()]);
        let src = Source::behind(src, staged, vec![chunk.clone()]);
        let to = self.nodes().far.rank_after(node.clone() + 1);
        let there = vec![(self.home(), 1.into()), rows, self.wide()];
        let dst = Access { rank: to.clone(), ..write(Operand::Dst, m.recv, there) };
        let domain = vec![("m", others.clone()), ("i", self.chunks().into())];
        let touched = vec![src, dst.into()];
        let leaf = Leaf::NicSend;
        let send = d.family("send", RoleKind::InterSend, leaf, domain, vec![], touched);
        let shape = vec![others.clone(), self.chunks().into()];
        let delivered = Writer::new(send, Operand::Src, vec![node, chunk.clone()]);
        let sent = d.flow(Flow::new("sent", shape, 1.into(), vec![delivered]));
        let word = vec![Var::EACH.into(), i];
        let room = Reader { lag: 1, ..Reader::new(stage, Operand::Dst, word) };
        let each = Some(Each { var: "m".into(), extent: others });
        d.read(sent, Reader { each, ..room });
        let shape = vec![self.nodes().count().into(), self.chunks().into()];
        let behind = Writer::new(send, Operand::Dst, vec![self.home(), chunk]).on(to);
        d.flow(Flow::new("wired", shape, 1.into(), vec![behind]))
    }

    /// The words of the network become words of the GPU.
    fn relay(&self, d: &mut Draft, wired: FlowId) -> FlowId {
        let came = self.came();
        let domain = vec![("m", (self.nodes().count() - 1).into()), ("i", self.chunks().into())];
        let none = [] as [Access; 0];
        let relay = d.family("relay", RoleKind::InterReduce, Leaf::Signal, domain, vec![], none);
        let word = vec![came.node, came.chunk];
        d.read(wired, Reader::new(relay, Operand::Src, word.clone()));
        let shape = vec![self.nodes().count().into(), self.chunks().into()];
        let seen = Writer::new(relay, Operand::Dst, word);
        d.flow(Flow::new("relayed", shape, 1.into(), vec![seen]))
    }

    /// Own rows, and those that have come from other nodes, go to the neighbours.
    fn bring(&self, d: &mut Draft, m: &Memory, relayed: FlowId) -> FlowId {
        let (rank, each) = self.nodes().near.every_peer();
        let to_all = |of: Expr, rows: (Expr, Expr)| Access {
            rank: rank.clone(),
            each: Some(each.clone()),
            ..write(Operand::Dst, m.all, vec![(of, 1.into()), rows, self.wide()])
        };
        let i = Expr::from(Var::domain(0));
        let rows = self.chunk(d, m, &i, Var::RANK);
        let src = read(Operand::Src, m.shard, vec![rows.clone(), self.wide()]);
        let domain = vec![("i", self.chunks().into())];
        let accesses = [src, to_all(Var::RANK.into(), rows)];
        let push = d.family("push", RoleKind::IntraComm, self.copy(), domain, vec![], accesses);

        let came = self.came();
        let rows = self.chunk(d, m, &came.chunk, came.rank.clone());
        let here = vec![(came.node.clone(), 1.into()), rows.clone(), self.wide()];
        let word = vec![came.node, came.chunk.clone()];
        let src = Source::behind(read(Operand::Src, m.recv, here), relayed, word);
        let domain = vec![("m", (self.nodes().count() - 1).into()), ("i", self.chunks().into())];
        let touched = vec![src, to_all(came.rank.clone(), rows).into()];
        let kind = RoleKind::IntraComm;
        let forward = d.family("forward", kind, self.copy(), domain, vec![], touched);
        let writer = |family, word| {
            Writer::new(family, Operand::Dst, word).on_each((rank.clone(), each.clone()))
        };
        let from = vec![
            writer(push, vec![Var::RANK.into(), i]),
            writer(forward, vec![came.rank, came.chunk]),
        ];
        let shape = vec![self.world.into(), self.chunks().into()];
        d.flow(Flow::new("arrived", shape, 1.into(), from))
    }

    /// Tiles of all rows, the own ones first.
    fn multiply(
        &self,
        d: &mut Draft,
        m: &Memory,
        (b, c): (BufId, BufId),
        relayed: FlowId,
        arrived: FlowId,
    ) {
        let [s, i, j] = [0, 1, 2].map(|n| Expr::from(Var::domain(n)));
        let of = harness::world(self.world).place_after(s.clone());
        let rows = self.chunk(d, m, &i, of.clone());
        let columns = (j.clone() * WIDTH, block_rows(self.columns.into(), j, WIDTH));
        // Places that many ranks apart are those of a rail.
        let off_rail = s.clone() % self.local;
        let and = |a, b| Expr::bin(BinOp::And, a, b);
        let of_rail = and(Expr::Const(0).lt(s.clone()), off_rail.clone().equals(0));
        let source = |when: Expr, buffer: BufId, first: Option<Expr>| {
            let mut region = vec![rows.clone(), self.wide()];
            first.into_iter().for_each(|at| region.insert(0, (at, 1.into())));
            Access { when: Some(when), ..read(Operand::A, buffer, region) }
        };
        let node = of.clone() / self.local;
        let own = source(s.equals(0), m.shard, None);
        let wire = source(of_rail, m.recv, Some(node.clone()));
        let others = source(Expr::Const(0).lt(off_rail), m.all, Some(of.clone()));
        let row = (of.clone() * self.capacity() + rows.0.clone(), rows.1.clone());
        let touched: Vec<Source> = vec![
            own.into(),
            Source::behind(wire, relayed, vec![node, i.clone()]),
            Source::behind(others, arrived, vec![of, i]),
            read(Operand::B, b, vec![self.wide(), columns.clone()]).into(),
            write(Operand::C, c, vec![row, columns]).into(),
        ];
        let leaf = Leaf::MmaTile(MmaTile {
            block: [64, WIDTH as u32, 64],
            stages: 4,
            a_layout: ALayout::Mk,
            b_layout: BLayout::Kn,
            shifted: false,
            store: Store::Tma,
            consumers: Consumers::Cooperative,
            cluster: 1,
            multicast: [1, 1],
            epilogue: Vec::new(),
        });
        let tiles = (self.columns + WIDTH - 1) / WIDTH;
        let domain =
            vec![("s", self.world.into()), ("i", self.chunks().into()), ("j", tiles.into())];
        d.family("gemm", RoleKind::Compute, leaf, domain, vec![], touched);
    }

    /// All rows times the weights of a rank.
    fn reference(&self) -> impl Fn(&Data, i64, usize) -> Vec<Option<f64>> {
        let Net { depth, columns, .. } = *self;
        let (world, depth, columns) = (self.world as usize, depth as usize, columns as usize);
        move |data, epoch, rank| {
            let b = data.input(epoch, rank, "b");
            let mut out = Vec::new();
            for row in (0..world).flat_map(|p| data.input(epoch, p, "a").chunks(depth)) {
                for j in 0..columns {
                    let terms = row.iter().zip(b.iter().skip(j).step_by(columns));
                    out.push(Some(terms.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()));
                }
            }
            out
        }
    }

    fn check(&self, seeds: u64) -> Plan {
        let (plan, _) = verified(self.draft(), SUPERFLUOUS);
        right(&plan, &no_tables, &[("c", &self.reference())], seeds);
        plan
    }
}

/// What comes over the network was sent when the whole node had entered, neighbours, too, so that either wait would do
/// for memory. The first is there for the limits of waits: a rank that enters late is waited for as long as entry may
/// take.
const SUPERFLUOUS: &[(&str, &str)] = &[("entered", "enter.node"), ("entered", "forward")];

const UNORDERED: Net = Net { ordering: NicOrdering::Unordered, lanes: 1, ..TWO_NODES };

#[test]
fn two_nodes() {
    insta::assert_snapshot!("two_nodes", TWO_NODES.check(6));
    insta::assert_snapshot!("two_nodes_unordered", UNORDERED.check(6));
}

#[test]
fn worlds() {
    for net in [TWO_NODES, UNORDERED] {
        Net { world: 6, local: 2, rows: 100, ..net }.check(2);
        Net { world: 6, local: 3, rows: 80, ..net }.check(2);
        // The last rank has nothing.
        Net { rows: 9, ..net }.check(2);
    }
}

const SMALL: Net = Net { rows: 62, depth: 8, columns: 8, ..TWO_NODES };

#[test]
fn every_flow_is_needed() {
    for ordering in [NicOrdering::InOrder, NicOrdering::Unordered] {
        let net = Net { ordering, ..SMALL };
        let n = spoilt_are_rejected(&|| net.draft(), SUPERFLUOUS);
        assert!(n >= 30, "{n}");
    }
}

#[test]
fn neighbours_must_have_entered() {
    let mut plan = harness::plan(SMALL.draft()).expect("a plan");
    assert!(valid::verify(&plan).is_ok());
    for (_, x) in plan.families.iter_mut().filter(|(_, x)| x.name != "push") {
        let entered = plan.signals.iter().find(|(_, s)| s.name == "entered").expect("entered").0;
        x.waits.retain(|w| w.signal != entered);
    }
    let failure = valid::verify(&plan).expect_err("rows that a neighbour still reads");
    assert!(failure.violations.iter().any(|v| v.rule() == 1), "{failure}");
}

/// Why the verifier rejects a changed plan: the messages of rule 6.
fn refused(change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = harness::plan(SMALL.draft()).expect("a plan");
    change(&mut plan);
    let failure = valid::verify(&plan).expect_err("a plan that leaves its node");
    assert!(failure.violations.iter().any(|v| v.rule() == 6), "{failure}");
    failure.to_string()
}

fn family<'p>(plan: &'p mut Plan, name: &str) -> &'p mut mk_plan::Family {
    plan.families.iter_mut().find(|(_, x)| x.name == name).expect("a family").1
}

#[test]
fn ranks_reach_their_own_node() {
    let far = |e: &mut Expr| *e = (Expr::from(Var::RANK) + 2) % 4;
    let text = refused(|p| {
        let push = family(p, "push");
        far(&mut push.accesses[1].rank);
    });
    assert!(text.contains("touches memory of rank 2, which is in another node"), "{text}");
    let text = refused(|p| far(&mut family(p, "push").posts[0].rank));
    assert!(text.contains("raises a word of rank 2, which is in another node"), "{text}");
    let near = |e: &mut Expr| *e = Expr::from(Var::RANK) / 2 * 2 + (Expr::from(Var::RANK) + 1) % 2;
    let text = refused(|p| near(&mut family(p, "send").accesses[1].rank));
    assert!(text.contains("is in the same node: use a copy"), "{text}");
}

#[test]
fn cards_reach_net_memory_and_hosts_their_words() {
    let text = refused(|p| {
        let all = p.buffers.iter().find(|(_, b)| b.name == "a_all").expect("a_all").0;
        family(p, "forward").accesses[1].buffer = all;
        let send = family(p, "send");
        send.accesses[1].buffer = all;
        send.accesses[1].region[0].0 = Var::RANK.into();
    });
    assert!(text.contains("network cards reach net memory only"), "{text}");
    let text = refused(|p| {
        p.signals.iter_mut().for_each(|(_, s)| s.net &= s.name != "wired");
    });
    assert!(text.contains("hosts raise net words, and"), "{text}");
    let text = refused(|p| {
        p.signals.iter_mut().for_each(|(_, s)| s.net |= s.name == "relayed");
    });
    assert!(text.contains("`lead` raises"), "{text}");
    let text = refused(|p| {
        let compute = p.roles.iter().find(|(_, r)| r.kind == RoleKind::Compute).expect("one").0;
        family(p, "relay").role = compute;
    });
    assert!(text.contains("awaits words of hosts in role compute"), "{text}");
}

#[test]
fn a_send_is_one_message_and_one_word() {
    let text = refused(|p| {
        for x in ["stage", "send"] {
            family(p, x)
                .accesses
                .iter_mut()
                .flat_map(|a| a.region.last_mut())
                .for_each(|r| r.1 = 4.into());
        }
    });
    assert!(text.contains("is several pieces of memory: a message is one"), "{text}");
    let text = refused(|p| {
        let send = family(p, "send");
        let mut again = send.posts.last().expect("a post").clone();
        again.edge = EdgeId::new(999);
        again.index[0] = Expr::from(1) - again.index[0].clone();
        send.posts.push(again);
    });
    assert!(text.contains("raises several words at the receiver"), "{text}");
    let text = refused(|p| {
        p.nic.as_mut().expect("a network").ordering = NicOrdering::Unordered;
        for post in &mut family(p, "send").posts {
            post.by = Agent::Sender;
        }
    });
    assert!(text.contains("on an unordered network the receiver raises its words"), "{text}");
}
