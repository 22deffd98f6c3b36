//! Attention over sequences that ranks share: keys and values of every rank travel to all others, and each chunk is
//! retained.
//!
//! The form: owners push their keys and values in pieces, from the caller's memory, to the peers in the order in which
//! those want them; a tile of queries goes round the ring in its inner loop, keeps its accumulator in registers, and
//! waits for the pieces of a chunk when it comes to it. The own chunk is read in place, so that keys and values have
//! two sources. No slot is reused within a launch.
//!
//! Two variations say more of flows: chunks that go from rank to rank, whose forwarding family reads the flow that it
//! writes; and fewer slots than heads, each of which its readers hand back to the owner before it sends the head that
//! takes it.

use super::harness::{self, Data, no_tables, right, spoilt_are_rejected, verified};
use crate::graph::Extent;
use crate::passes::{
    draft::{Arrival, Draft, Flow, FlowId, Reader, Source, Writer, read, write},
    shape::{
        ranks::block_rows,
        tensor::{Tensor, cuts},
    },
};
use mk_abi::DType;
use mk_plan::{
    Access, Agent, AttendTile, BufId, Carry, CopyVia, Each, Expr, FamId, Leaf, Mask, Operand,
    Point, RoleKind, Space, Store, Var,
};
use mk_prove::valid;
use mk_syntax::Placement;

/// Sizes, and how chunks travel.
#[derive(Clone, Copy)]
struct Ring {
    world: i32,
    batch: i32,
    /// Rows of all ranks.
    sequence: i32,
    /// Heads of queries, and of keys and values.
    heads: [i32; 2],
    depth: i32,
    /// Queries of a tile, and rows of a piece.
    rows: [i32; 2],
    /// Heads of keys and values that a rank has room for.
    slots: i32,
    forwarded: bool,
}

const RETAINED: Ring = Ring {
    world: 3,
    batch: 1,
    sequence: 70,
    heads: [4, 2],
    depth: 32,
    rows: [16, 16],
    slots: 2,
    forwarded: false,
};

impl Ring {
    fn tensor(&self, name: &str, dtype: DType, heads: i32) -> Tensor {
        let sequence = Extent { symbol: Some("S".into()), ..Extent::fixed(self.sequence) };
        let shape = vec![
            Extent::fixed(self.batch),
            sequence,
            Extent::fixed(heads),
            Extent::fixed(self.depth),
        ];
        let cuts = cuts(&[Placement::Shard(1)], &[self.world]);
        Tensor { name: name.into(), dtype, shape, cuts }
    }

    /// Rows of a chunk, at most.
    fn capacity(&self) -> i32 {
        (self.sequence + self.world - 1) / self.world
    }

    fn pieces(&self) -> i32 {
        (self.capacity() + self.rows[1] - 1) / self.rows[1]
    }

    /// Heads that take the slots one after the other.
    fn windows(&self) -> i32 {
        (self.heads[1] + self.slots - 1) / self.slots
    }

    fn draft(&self) -> Draft {
        let mut d = harness::draft("ring_attention", self.world as u32);
        let [q, k, v] = [("q", 0), ("k", 1), ("v", 1)]
            .map(|(name, of)| self.tensor(name, DType::Bf16, self.heads[of]));
        let [q_in, k_in, v_in] = [&q, &k, &v].map(|t| d.tensor(t, Space::In));
        let o = d.tensor(&Tensor { name: "o".into(), ..q.clone() }, Space::Out);
        let rows = d.local(&q, 1, Var::RANK);
        let shape = vec![self.batch.into(), self.heads[0].into(), rows];
        let lse = d.buffer("lse", Space::Out, DType::F32, shape, None);
        // Source, batch, slot, keys or values, row, element.
        let shape = [self.world, self.batch, self.slots, 2, self.capacity(), self.depth];
        let shape = shape.map(Expr::from).to_vec();
        let all = d.buffer("kv_all", Space::Workspace, DType::Bf16, shape, None);
        let chunks = Chunks { ring: *self, k, inputs: [k_in, v_in], all };
        let (push, arrived) = chunks.push(&mut d);
        if self.forwarded && self.world > 2 {
            chunks.forward(&mut d, arrived);
        }
        let attend = chunks.attend(&mut d, arrived, &q, [q_in, o, lse]);
        if self.slots < self.heads[1] {
            chunks.hand_back(&mut d, attend, push);
        }
        d
    }
}

/// Keys and values on their way.
struct Chunks {
    ring: Ring,
    /// The shape of keys, and of values.
    k: Tensor,
    inputs: [BufId; 2],
    all: BufId,
}

/// The loops of a family that moves chunks: a head is a window of them, and a place in it.
struct Moved {
    batch: Expr,
    window: Expr,
    step: Expr,
    slot: Expr,
    values: Expr,
    piece: Expr,
}

impl Moved {
    fn new() -> Moved {
        let [batch, window, step, slot, values, piece] =
            [0, 1, 2, 3, 4, 5].map(|i| Expr::from(Var::domain(i)));
        Moved { batch, window, step, slot, values, piece }
    }
}

impl Chunks {
    /// The loops: a window of heads to every peer in turn, then the next window.
    fn domain(&self, steps: i32) -> Vec<(&'static str, Expr)> {
        let Ring { batch, heads, slots, .. } = self.ring;
        let left = Expr::Const(heads[1]) - Expr::from(Var::domain(1)) * slots;
        vec![
            ("b", batch.into()),
            ("w", self.ring.windows().into()),
            ("s", steps.into()),
            ("g", Expr::Const(slots).min(left)),
            ("c", 2.into()),
            ("p", self.ring.pieces().into()),
        ]
    }

    fn head(&self, m: &Moved) -> Expr {
        m.window.clone() * self.ring.slots + m.slot.clone()
    }

    /// Rows of a piece of a rank's chunk.
    fn piece(&self, d: &mut Draft, piece: &Expr, of: &Expr) -> (Expr, Expr) {
        let height = self.ring.rows[1];
        let rows = d.local(&self.k, 1, of.clone());
        (piece.clone() * height, block_rows(rows, piece.clone(), height))
    }

    /// Where a chunk is retained.
    fn slot(&self, of: Expr, m: &Moved, rows: (Expr, Expr)) -> Vec<(Expr, Expr)> {
        vec![
            (of, 1.into()),
            (m.batch.clone(), 1.into()),
            (m.slot.clone(), 1.into()),
            (m.values.clone(), 1.into()),
            rows,
            (0.into(), self.ring.depth.into()),
        ]
    }

    fn copy(&self) -> Leaf {
        CopyVia::Bulk.leaf(4)
    }

    /// Owners push their chunks, piece by piece, keys and values, to every peer: or to the next rank only, if that
    /// passes them on.
    fn push(&self, d: &mut Draft) -> (FamId, FlowId) {
        let (m, world) = (Moved::new(), self.ring.world);
        let rows = self.piece(d, &m.piece, &Var::RANK.into());
        let head = self.head(&m);
        let from = |buffer: BufId, values: i32| {
            let region = vec![
                (m.batch.clone(), 1.into()),
                rows.clone(),
                (head.clone(), 1.into()),
                (0.into(), self.ring.depth.into()),
            ];
            let when = Some(m.values.clone().equals(values));
            Access { when, ..read(Operand::Src, buffer, region) }
        };
        let to = harness::world(world).rank_after(m.step.clone() + 1);
        let slot = self.slot(Var::RANK.into(), &m, rows.clone());
        let dst = Access {
            rank: to.clone(),
            version: m.window.clone(),
            ..write(Operand::Dst, self.all, slot)
        };
        let accesses = vec![from(self.inputs[0], 0), from(self.inputs[1], 1), dst];
        let domain = self.domain(if self.ring.forwarded { 1 } else { world - 1 });
        let push = d.family("push", RoleKind::IntraComm, self.copy(), domain, vec![], accesses);
        let word = vec![Var::RANK.into(), m.batch, head, m.piece];
        let pushed = Writer::new(push, Operand::Dst, word).on(to);
        let Ring { batch, heads, .. } = self.ring;
        let shape = [world, batch, heads[1], self.ring.pieces()].map(Expr::from).to_vec();
        (push, d.flow(Flow::new("arrived", shape, 2.into(), vec![pushed])))
    }

    /// Chunks that have arrived go on to the next rank, unless it is their owner.
    fn forward(&self, d: &mut Draft, arrived: FlowId) {
        let (m, world) = (Moved::new(), self.ring.world);
        let of = harness::world(world).place_after(Expr::Const(world - 1) - m.step.clone());
        let rows = self.piece(d, &m.piece, &of);
        let slot = self.slot(of.clone(), &m, rows);
        let word = vec![of, m.batch.clone(), self.head(&m), m.piece.clone()];
        let src = Source::behind(read(Operand::Src, self.all, slot.clone()), arrived, word.clone());
        let to = harness::world(world).rank_after(1.into());
        let dst = Access { rank: to.clone(), ..write(Operand::Dst, self.all, slot) };
        let domain = self.domain(world - 2);
        let touched = vec![src, dst.into()];
        let forward =
            d.family("forward", RoleKind::IntraComm, self.copy(), domain, vec![], touched);
        d.flows[arrived].from.push(Writer::new(forward, Operand::Dst, word).on(to));
    }

    /// Tiles of queries against the chunks of all ranks, beginning with the own one.
    fn attend(
        &self,
        d: &mut Draft,
        arrived: FlowId,
        q: &Tensor,
        [q_in, o, lse]: [BufId; 3],
    ) -> FamId {
        let Ring { world, heads, depth, rows, slots, .. } = self.ring;
        let [b, h, i] = [0, 1, 2].map(|n| Expr::from(Var::domain(n)));
        let (step, g) = (Expr::from(Var::INNER), h.clone() / (heads[0] / heads[1]));
        let mine = d.local(q, 1, Var::RANK);
        let tile = (i.clone() * rows[0], block_rows(mine, i, rows[0]));
        let one = |e: &Expr| (e.clone(), Expr::Const(1));
        let wide = (Expr::Const(0), Expr::Const(depth));
        let queries = vec![one(&b), tile.clone(), one(&h), wide.clone()];
        let of = harness::world(world).place_after(Expr::Const(world) - step.clone());
        let (own, chunk) = (d.local(&self.k, 1, Var::RANK), d.local(&self.k, 1, of.clone()));
        let sources = |operand: Operand, buffer: BufId, values: i32| {
            let region = vec![one(&b), (0.into(), own.clone()), one(&g), wide.clone()];
            let here = Access {
                at: Point::Inner,
                when: Some(step.clone().equals(0)),
                ..read(operand, buffer, region)
            };
            let slot = one(&(g.clone() % slots));
            let rows = (0.into(), chunk.clone());
            let region =
                vec![one(&of), one(&b), slot, (values.into(), 1.into()), rows, wide.clone()];
            let there = Access {
                at: Point::Inner,
                when: Some(Expr::Const(0).lt(step.clone())),
                version: g.clone() / slots,
                ..read(operand, self.all, region)
            };
            (here, there)
        };
        let (own_k, k) = sources(Operand::K, self.inputs[0], 0);
        let (own_v, v) = sources(Operand::V, self.inputs[1], 1);
        // The words of a chunk's pieces stand for keys and values.
        let each = Each { var: "p".into(), extent: self.ring.pieces().into() };
        let word = vec![of, b.clone(), g, Var::EACH.into()];
        let k = Source {
            access: k,
            arrivals: vec![Arrival { each: Some(each), ..Arrival::new(arrived, word) }],
        };
        let touched: Vec<Source> = vec![
            read(Operand::Q, q_in, queries.clone()).into(),
            own_k.into(),
            own_v.into(),
            k,
            v.into(),
            write(Operand::O, o, queries).into(),
            write(Operand::Lse, lse, vec![one(&b), one(&h), tile]).into(),
        ];
        let scale = (1.0 / (depth as f32).sqrt()).to_bits();
        let leaf = Leaf::AttendTile(AttendTile {
            block: [rows[0] as u32, rows[1] as u32, depth as u32],
            values: None,
            heads: 1,
            carry: Carry::Registers,
            scale,
            stages: 2,
            cap: None,
            mask: Mask::Full,
            store: Store::Tma,
        });
        let tiles = (self.ring.capacity() + rows[0] - 1) / rows[0];
        let domain =
            vec![("b", self.ring.batch.into()), ("h", heads[0].into()), ("i", tiles.into())];
        let attend = d.family("attend", RoleKind::Compute, leaf, domain, vec![], touched);
        d.plan.families[attend].inner = Some(("s".into(), world.into()));
        attend
    }

    /// Readers of a head hand its slots back to the owners, who send the head that takes them behind that.
    fn hand_back(&self, d: &mut Draft, attend: FamId, push: FamId) {
        let Ring { world, heads, rows, slots, .. } = self.ring;
        let group = heads[0] / heads[1];
        let [b, g] = [Var::domain(0).into(), Expr::from(Var::domain(1)) / group];
        let (owner, each) = harness::world(world).every_peer();
        let followed = g.clone().lt(heads[1] - slots);
        let taken = Writer::new(attend, Operand::K, vec![Var::RANK.into(), b, g])
            .on_each((owner, each))
            .when(Some(followed));
        // A tile without queries has nothing for the storer, but its keys are read.
        let taken = Writer { by: Some(Agent::Consumers), ..taken };
        let tiles = (self.ring.capacity() + rows[0] - 1) / rows[0];
        let shape = [world, self.ring.batch, heads[1]].map(Expr::from).to_vec();
        let count = (tiles * group).into();
        let handed_back = d.flow(Flow::new("handed_back", shape, count, vec![taken]));
        let m = Moved::new();
        let before = (m.window.clone() - 1) * slots + m.slot;
        let word = vec![harness::world(world).rank_after(m.step + 1), m.batch, before];
        let room = Reader::new(push, Operand::Dst, word);
        d.read(handed_back, room.when(Some(Expr::Const(0).lt(m.window))));
    }
}

/// Softmax attention of a rank's queries over the keys and values of all ranks: results, or logarithms of sums.
fn reference(ring: Ring, logarithms: bool) -> impl Fn(&Data, i64, usize) -> Vec<Option<f64>> {
    move |data, epoch, rank| {
        let [heads, groups] = ring.heads.map(|n| n as usize);
        let (batch, depth, world) = (ring.batch as usize, ring.depth as usize, ring.world as usize);
        let q = data.input(epoch, rank, "q");
        let rows = q.len() / (batch * heads * depth);
        let mut o = vec![0.0; q.len()];
        let mut lse = Vec::new();
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            for i in 0..rows {
                let at = ((b * rows + i) * heads + h) * depth;
                let (mut sum, mut acc) = (0.0, vec![0.0; depth]);
                for p in 0..world {
                    let (k, v) = (data.input(epoch, p, "k"), data.input(epoch, p, "v"));
                    let n = k.len() / (batch * groups * depth);
                    for j in 0..n {
                        let kv = ((b * n + j) * groups + h / (heads / groups)) * depth;
                        let dot: f64 =
                            (0..depth).map(|c| f64::from(q[at + c]) * f64::from(k[kv + c])).sum();
                        let weight = (dot / (depth as f64).sqrt()).exp();
                        sum += weight;
                        for (c, x) in acc.iter_mut().enumerate() {
                            *x += weight * f64::from(v[kv + c]);
                        }
                    }
                }
                lse.push(sum.ln());
                o[at..at + depth].iter_mut().zip(acc).for_each(|(o, x)| *o = x / sum);
            }
        }
        let result = if logarithms { lse } else { o };
        result.into_iter().map(Some).collect()
    }
}

fn check(ring: Ring, seeds: u64) -> mk_plan::Plan {
    let (plan, _) = verified(ring.draft(), &[]);
    let (o, lse) = (reference(ring, false), reference(ring, true));
    right(&plan, &no_tables, &[("o", &o), ("lse", &lse)], seeds);
    plan
}

#[test]
fn retained_chunks() {
    insta::assert_snapshot!("ring_retained", check(RETAINED, 4));
}

#[test]
fn worlds() {
    // The last rank has fewer rows, or none.
    for (world, sequence) in [(2, 70), (4, 96), (4, 81), (4, 9)] {
        check(Ring { world, sequence, ..RETAINED }, 2);
    }
    check(Ring { batch: 2, heads: [2, 2], sequence: 40, ..RETAINED }, 2);
}

#[test]
fn chunks_from_rank_to_rank() {
    let forwarded = Ring { forwarded: true, ..RETAINED };
    insta::assert_snapshot!("ring_forwarded", check(forwarded, 4));
    check(Ring { world: 4, sequence: 81, ..forwarded }, 2);
    check(Ring { world: 2, ..forwarded }, 2);
}

#[test]
fn fewer_slots_than_heads() {
    let one = Ring { heads: [3, 3], slots: 1, ..RETAINED };
    insta::assert_snapshot!("ring_slots", check(one, 4));
    check(Ring { world: 4, heads: [6, 3], slots: 2, ..one }, 2);
}

#[test]
fn every_flow_is_needed() {
    let small = Ring { sequence: 50, heads: [2, 1], slots: 1, ..RETAINED };
    for ring in [
        small,
        Ring { forwarded: true, ..small },
        Ring { heads: [2, 2], ..small },
        Ring { world: 2, ..small },
    ] {
        let n = spoilt_are_rejected(&|| ring.draft(), &[]);
        assert!(n >= 8, "{n}");
    }
}

/// Keys come from one place at each step.
#[test]
fn one_source_at_a_step() {
    let plan = harness::plan(RETAINED.draft()).expect("a plan");
    let refused = |operand: Operand, when: Option<Expr>| {
        let mut plan = plan.clone();
        let attend = plan.families.iter_mut().find(|(_, x)| x.name == "attend").expect("one").1;
        let mut sources = attend.accesses.iter_mut().filter(|a| a.operand == operand);
        sources.next().expect("the own chunk").when = when;
        valid::verify(&plan).expect_err("a changed plan").to_string()
    };
    let text = refused(Operand::K, None);
    assert!(text.contains("`k` is read from two places at one step"), "{text}");
    // Values without keys.
    let text = refused(Operand::K, Some(0.into()));
    assert!(text.contains("`k` and `v` are not read at the same steps"), "{text}");
}
