//! Experts over packed blocks: tokens go to the ranks of their experts, through two products, and back as a weighted
//! sum.
//!
//! The form: rows of an expert are padded to blocks, and blocks packed, so that every write is affine and tables decide
//! only which memory is read. Tables come with the launch: rows of each expert, the rank and token of each packed row,
//! the rank and packed row of each of a token's slots. A block's word counts its rows; those that it lacks are a
//! credit, so that the threshold is a constant, for empty blocks, too. Tokens are staged in symmetric memory, in one
//! slot or in two that alternate between launches.

use super::harness::{self, Data, right, spoilt_are_rejected, verified};
use super::routing::Routing;
use crate::passes::{
    draft::{Draft, Flow, FlowId, Source, Writer, read, write},
    shape::ranks::block_rows,
};
use mk_abi::DType;
use mk_plan::{
    ALayout, Access, BLayout, BufId, Consumers, CopyVia, Each, EpilogueOp, Expr, FamId, Leaf,
    MmaTile, Operand, Plan, Point, ReduceTile, RoleKind, Space, Store, TabId, Table, TableSource,
    Var,
};

/// Rows of a block, of a piece that is pulled at once, of one that is staged at once, and of one that is combined at
/// once.
pub(super) const BLOCK: i32 = 128;
const PULLED: i32 = 16;
const STAGED: i32 = 16;
const COMBINED: i32 = 8;
/// Columns of a tile of the two products.
const TILE: [i32; 2] = [32, 64];

#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub world: i32,
    /// Tokens of each rank, and slots of each token.
    pub tokens: i32,
    pub slots: i32,
    /// Experts of each rank.
    pub experts: i32,
    /// Elements of a token, and between the products.
    pub width: i32,
    pub hidden: i32,
    /// Whether staged tokens alternate between two slots.
    pub parity: bool,
    /// Whether rows go back to their tokens; else they are the result, as they are packed.
    pub combined: bool,
}

const LAYER: Packed = Packed {
    world: 3,
    tokens: 76,
    slots: 2,
    experts: 2,
    width: 72,
    hidden: 48,
    parity: true,
    combined: true,
};

/// Buffers and tables of the draft.
struct Memory {
    x: BufId,
    w1: BufId,
    w2: BufId,
    out: BufId,
    xs: BufId,
    rows: BufId,
    h: BufId,
    blocks: TabId,
    source_rank: TabId,
    source_token: TabId,
}

/// One of the two products.
struct Product {
    name: &'static str,
    /// Rows, weights, results.
    of: [BufId; 3],
    /// Depth and columns.
    sizes: [i32; 2],
    epilogue: Vec<EpilogueOp>,
}

fn at(table: TabId, index: Vec<Expr>) -> Expr {
    Expr::Table(table, index)
}

pub(super) fn tiles(width: i32, tile: i32) -> i32 {
    (width + tile - 1) / tile
}

fn one(e: impl Into<Expr>) -> (Expr, Expr) {
    (e.into(), 1.into())
}

impl Packed {
    /// Blocks that hold the rows of any routing: each expert may have one that is not full.
    pub fn blocks(&self) -> i32 {
        let rows = self.world * self.tokens * self.slots.min(self.experts);
        (rows + self.experts * (BLOCK - 1)) / BLOCK
    }

    fn memory(&self, d: &mut Draft) -> Memory {
        let Packed { world, tokens, experts, width, hidden, .. } = *self;
        let packed = self.blocks() * BLOCK;
        let mut buffer = |name: &str, space: Space, shape: &[i32]| {
            let shape = shape.iter().map(|n| (*n).into()).collect();
            d.buffer(name, space, DType::Bf16, shape, None)
        };
        let staged: &[i32] = if self.parity { &[2, tokens, width] } else { &[tokens, width] };
        let result = if self.combined { tokens } else { packed };
        let (x, w1, w2, out) = (
            buffer("x", Space::In, &[tokens, width]),
            buffer("w1", Space::In, &[experts, width, 2, hidden]),
            buffer("w2", Space::In, &[experts, hidden, width]),
            buffer("out", Space::Out, &[result, width]),
        );
        let (xs, rows, h) = (
            buffer("xs", Space::Workspace, staged),
            buffer("rows", Space::Scratch, &[packed, width]),
            buffer("h", Space::Scratch, &[packed, hidden]),
        );
        let mut table = |name: &str, shape: &[i32], source: TableSource| {
            let shape = shape.iter().map(|n| *n as u32).collect();
            d.plan.tables.push(Table {
                name: name.into(),
                shape,
                source,
                stored: None,
                routed: None,
            })
        };
        let below = |n: i32| TableSource::Runtime { min: 0, max: n };
        let counts = table("counts", &[experts], below(world * tokens));
        let cut = TableSource::Blocks { of: counts, rows: BLOCK };
        let blocks = table("blocks", &[self.blocks(), 2], cut);
        let source_rank = table("source_rank", &[packed], below(world - 1));
        let source_token = table("source_token", &[packed], below(tokens - 1));
        Memory { x, w1, w2, out, xs, rows, h, blocks, source_rank, source_token }
    }

    /// A row of staged tokens: of two slots, the launch's.
    fn staged(&self, rows: (Expr, Expr)) -> Vec<(Expr, Expr)> {
        let mut region = vec![rows, (0.into(), self.width.into())];
        if self.parity {
            region.insert(0, one(Expr::from(Var::EPOCH) % 2));
        }
        region
    }

    fn draft(&self) -> Draft {
        let mut d = harness::draft("packed_experts", self.world as u32);
        let m = self.memory(&mut d);
        let staged = self.stage(&mut d, &m);
        let credit = self.credit(&mut d);
        let arrived = self.pull(&mut d, &m, staged, credit);
        let sizes = [self.width, self.hidden];
        let epilogue = vec![EpilogueOp::Swiglu];
        let first = Product { name: "gemm1", of: [m.rows, m.w1, m.h], sizes, epilogue };
        let first = self.product(&mut d, &m, first, arrived);
        let word = vec![Var::domain(0).into()];
        let shape = vec![self.blocks().into()];
        let count = tiles(self.hidden, TILE[0]).into();
        let done = Writer::new(first, Operand::C, word);
        let hidden = d.flow(Flow::new("hidden", shape, count, vec![done]));
        let sizes = [self.hidden, self.width];
        let second = |c| Product { name: "gemm2", of: [m.h, m.w2, c], sizes, epilogue: vec![] };
        if !self.combined {
            self.product(&mut d, &m, second(m.out), hidden);
            return d;
        }
        let shape = [self.blocks() * BLOCK, self.width].map(Expr::from).to_vec();
        let y = d.buffer("y", Space::Workspace, DType::Bf16, shape, None);
        let second = self.product(&mut d, &m, second(y), hidden);
        let word = vec![Var::RANK.into(), Var::domain(0).into()];
        let (rank, each) = d.nodes.near.everyone();
        let shape = vec![self.world.into(), self.blocks().into()];
        let count = tiles(self.width, TILE[1]).into();
        let done = Writer::new(second, Operand::C, word).on_each((rank, each));
        let done = d.flow(Flow::new("done", shape, count, vec![done]));
        self.combine(&mut d, &m, y, done);
        d
    }

    /// Tokens go to symmetric memory, where every rank may read them.
    fn stage(&self, d: &mut Draft, m: &Memory) -> FlowId {
        let i = Expr::from(Var::domain(0));
        let rows = (i.clone() * STAGED, block_rows(self.tokens.into(), i.clone(), STAGED));
        let region = vec![rows.clone(), (0.into(), self.width.into())];
        let src = read(Operand::Src, m.x, region);
        let dst = write(Operand::Dst, m.xs, self.staged(rows));
        let leaf = CopyVia::Bulk.leaf(4);
        let domain = vec![("i", tiles(self.tokens, STAGED).into())];
        let stage = d.family("stage", RoleKind::Compute, leaf, domain, vec![], [src, dst]);
        let (rank, each) = d.nodes.near.everyone();
        let staged = Writer::new(stage, Operand::Dst, vec![Var::RANK.into(), i]);
        let shape = vec![self.world.into(), tiles(self.tokens, STAGED).into()];
        d.flow(Flow::new("staged", shape, 1.into(), vec![staged.on_each((rank, each))]))
    }

    /// A task for each block, that only signals.
    fn credit(&self, d: &mut Draft) -> FamId {
        let domain = vec![("b", self.blocks().into())];
        let none = [] as [Access; 0];
        d.family("credit", RoleKind::Prologue, Leaf::Signal, domain, vec![], none)
    }

    /// Rows of a block come from wherever the tables say, some at a time.
    fn pull(&self, d: &mut Draft, m: &Memory, staged: FlowId, credit: FamId) -> FlowId {
        let [b, p] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let count = at(m.blocks, vec![b.clone(), 1.into()]);
        let first = p.clone() * PULLED;
        let row = b.clone() * BLOCK + first.clone();
        let source = |table: TabId| at(table, vec![row.clone() + Var::EACH]);
        let (rank, token) = (source(m.source_rank), source(m.source_token));
        let src = Access {
            rank: rank.clone(),
            each: Some(Each { var: "q".into(), extent: PULLED.into() }),
            when: Some((first + Var::EACH).lt(count.clone())),
            ..read(Operand::Src, m.xs, self.staged(one(token.clone())))
        };
        let src = Source::behind(src, staged, vec![rank, token / STAGED]);
        let len = block_rows(count.clone(), p, PULLED);
        let region = vec![(row, len.clone()), (0.into(), self.width.into())];
        let dst = write(Operand::Dst, m.rows, region);
        let leaf = CopyVia::Bulk.leaf(4);
        let domain = vec![("b", self.blocks().into()), ("p", (BLOCK / PULLED).into())];
        let touched = vec![src, dst.into()];
        let pull = d.family("pull", RoleKind::IntraComm, leaf, domain, vec![], touched);
        let word = vec![b];
        let rows = Writer { amount: len.max(0), ..Writer::new(pull, Operand::Dst, word.clone()) };
        let lacking = Expr::Const(BLOCK) - count;
        let lacking = Writer { amount: lacking, ..Writer::new(credit, Operand::Dst, word) };
        let shape = vec![self.blocks().into()];
        d.flow(Flow::new("arrived", shape, BLOCK.into(), vec![rows, lacking]))
    }

    /// The rows of each block times the weights of its expert.
    fn product(&self, d: &mut Draft, m: &Memory, product: Product, flow: FlowId) -> FamId {
        let Product { name, of: [a, b, c], sizes: [depth, columns], epilogue } = product;
        let gated = !epilogue.is_empty();
        let width = TILE[usize::from(!gated)];
        let [block, j] = [0, 1].map(|n| Expr::from(Var::domain(n)));
        let of = |column: i32| at(m.blocks, vec![block.clone(), column.into()]);
        let rows = (block.clone() * BLOCK, of(1));
        let columns_of = (j.clone() * width, block_rows(columns.into(), j, width));
        let a = read(Operand::A, a, vec![rows.clone(), (0.into(), depth.into())]);
        let mut weights = vec![one(of(0)), (0.into(), depth.into()), columns_of.clone()];
        if gated {
            weights.insert(2, (0.into(), 2.into()));
        }
        let touched = vec![
            Source::behind(a, flow, vec![block]),
            read(Operand::B, b, weights).into(),
            write(Operand::C, c, vec![rows, columns_of]).into(),
        ];
        let leaf = Leaf::MmaTile(MmaTile {
            block: [BLOCK as u32, 64, 64],
            stages: 4,
            a_layout: ALayout::Mk,
            b_layout: BLayout::Kn,
            shifted: false,
            store: Store::Tma,
            consumers: Consumers::Cooperative,
            cluster: 1,
            multicast: [1, 1],
            epilogue,
        });
        let domain = vec![("b", self.blocks().into()), ("j", tiles(columns, width).into())];
        d.family(name, RoleKind::Compute, leaf, domain, vec![], touched)
    }

    /// Each token is the weighted sum of its slots' rows, wherever they are, in the order of slots.
    fn combine(&self, d: &mut Draft, m: &Memory, y: BufId, done: FlowId) {
        let shape = [self.tokens, self.slots].map(Expr::from).to_vec();
        let gate = d.buffer("gate", Space::In, DType::F32, shape, None);
        let table = d.plan.tables.push(Table {
            name: "place".into(),
            shape: vec![self.tokens as u32, self.slots as u32, 2],
            source: TableSource::Places { of: m.blocks },
            stored: None,
            routed: None,
        });
        let token = Expr::from(Var::domain(0)) * COMBINED + Var::INNER;
        let exists = Some(token.clone().lt(self.tokens));
        let each = Some(Each { var: "j".into(), extent: self.slots.into() });
        let place = |part: i32| at(table, vec![token.clone(), Var::EACH.into(), part.into()]);
        let wide = (Expr::Const(0), Expr::Const(self.width));
        let inner = |access: Access| Access { at: Point::Inner, when: exists.clone(), ..access };
        let src = Access {
            rank: place(0),
            each: each.clone(),
            ..inner(read(Operand::Src, y, vec![one(place(1)), wide.clone()]))
        };
        let weight = vec![one(token.clone()), one(Var::EACH)];
        let factor = Access { each, ..inner(read(Operand::W, gate, weight)) };
        let dst = inner(write(Operand::Dst, m.out, vec![one(token.clone()), wide]));
        let touched = vec![
            Source::behind(src, done, vec![place(0), place(1) / BLOCK]),
            factor.into(),
            dst.into(),
        ];
        let leaf = Leaf::ReduceTile(ReduceTile { epilogue: Vec::new() });
        let domain = vec![("i", tiles(self.tokens, COMBINED).into())];
        let combine = d.family("combine", RoleKind::IntraComm, leaf, domain, vec![], touched);
        d.plan.families[combine].inner = Some(("q".into(), COMBINED.into()));
    }
}

impl Packed {
    /// A token of a rank through an expert of the world, in f64.
    fn expert(&self, data: &Data, epoch: i64, (rank, token): (usize, usize), e: i32) -> Vec<f64> {
        let (width, hidden) = (self.width as usize, self.hidden as usize);
        let (home, e) = ((e / self.experts) as usize, (e % self.experts) as usize);
        let x = data.input(epoch, rank, "x");
        let (w1, w2) = (data.input(epoch, home, "w1"), data.input(epoch, home, "w2"));
        let product = |half: usize, n: usize| -> f64 {
            let w = |k: usize| w1[((e * width + k) * 2 + half) * hidden + n];
            (0..width).map(|k| f64::from(x[token * width + k]) * f64::from(w(k))).sum()
        };
        let h: Vec<f64> = (0..hidden)
            .map(|n| (product(0, n), product(1, n)))
            .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
            .collect();
        let w = |k: usize, n: usize| f64::from(w2[(e * hidden + k) * width + n]);
        (0..width).map(|n| (0..hidden).map(|k| h[k] * w(k, n)).sum()).collect()
    }

    /// A token of a rank through all its experts.
    fn token(&self, data: &Data, epoch: i64, rank: usize, t: i32, experts: Vec<i32>) -> Vec<f64> {
        let gate = data.input(epoch, rank, "gate");
        let mut sum = vec![0.0; self.width as usize];
        for (j, e) in experts.into_iter().enumerate() {
            let y = self.expert(data, epoch, (rank, t as usize), e);
            let weight = f64::from(gate[(t * self.slots) as usize + j]);
            sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
        }
        sum
    }

    /// The result of a rank: its tokens, or the packed rows of its experts, with nothing in what pads them.
    fn reference(&self, routing: Routing) -> impl Fn(&Data, i64, usize) -> Vec<Option<f64>> {
        let p = *self;
        move |data, epoch, rank| {
            if p.combined {
                let route = |t| p.route(routing, epoch, rank, t);
                let tokens = (0..p.tokens).flat_map(|t| p.token(data, epoch, rank, t, route(t)));
                return tokens.map(Some).collect();
            }
            let width = p.width as usize;
            let mut out = vec![None; (p.blocks() * BLOCK) as usize * width];
            let rows = p.rows(routing, epoch);
            for e in rank as i32 * p.experts..(rank as i32 + 1) * p.experts {
                for (i, (from, t)) in rows[e as usize].iter().enumerate() {
                    let y = p.expert(data, epoch, (*from as usize, *t as usize), e);
                    let at = (p.first(&rows, e) as usize + i) * width;
                    out[at..at + width].iter_mut().zip(y).for_each(|(out, y)| *out = Some(y));
                }
            }
            out
        }
    }

    fn check(&self, routings: &[Routing], seeds: u64) -> Plan {
        let (plan, proof) = verified(self.draft(), &[]);
        assert!(proof.exhaustive && proof.counts == BLOCK as u64 + 1, "{proof}");
        for routing in routings {
            let tables = |epoch, rank, name: &str| self.table(*routing, epoch, rank, name);
            right(&plan, &tables, &[("out", &self.reference(*routing))], seeds);
        }
        plan
    }
}

const ROUTINGS: [Routing; 4] = [Routing::Random, Routing::Empty, Routing::LastRank, Routing::Mixed];

#[test]
fn packed_blocks() {
    insta::assert_snapshot!("packed_blocks", LAYER.check(&ROUTINGS, 2));
}

#[test]
fn rows_as_they_are_packed() {
    let dispatched = Packed { combined: false, ..LAYER };
    insta::assert_snapshot!("packed_dispatched", dispatched.check(&ROUTINGS, 2));
}

#[test]
fn one_slot_for_staged_tokens() {
    Packed { parity: false, ..LAYER }.check(&[Routing::Mixed], 2);
}

#[test]
fn worlds() {
    Packed { world: 2, tokens: 37, ..LAYER }.check(&[Routing::Mixed], 2);
    Packed { world: 4, tokens: 40, experts: 1, ..LAYER }.check(&[Routing::Mixed], 2);
    Packed { world: 2, slots: 3, experts: 3, tokens: 60, ..LAYER }.check(&[Routing::Random], 2);
}

const SMALL: Packed = Packed { world: 2, tokens: 20, experts: 1, width: 8, hidden: 8, ..LAYER };

#[test]
fn one_block_on_two_ranks() {
    insta::assert_snapshot!("packed_small", SMALL.check(&ROUTINGS, 2));
}

#[test]
fn every_flow_is_needed() {
    let dispatched = Packed { combined: false, ..SMALL };
    for parity in [true, false] {
        let n = spoilt_are_rejected(&|| Packed { parity, ..dispatched }.draft(), &[]);
        assert!(n >= 16, "{n}");
    }
    // Every launch waits for all ranks to enter, before `y` is written: none is two launches ahead.
    let n = spoilt_are_rejected(&|| SMALL.draft(), &[("entered", "stage")]);
    assert!(n >= 20, "{n}");
    // Ranks stage tokens when all have entered this launch, and where a block has rows, their ranks have staged them.
    let one = Packed { parity: false, ..SMALL };
    let n = spoilt_are_rejected(&|| one.draft(), &[("entered", "gemm2")]);
    assert!(n >= 20, "{n}");
}

/// Entry into the launch before is enough for memory that alternates, and for no other.
#[test]
fn two_slots_or_this_launch() {
    let two = Packed { combined: false, ..SMALL };
    let mut plan = harness::plan(two.draft()).expect("a plan");
    assert!(mk_prove::valid::verify(&plan).is_ok());
    let same = |e: &mut Expr| {
        if e.mentions(Var::EPOCH) {
            *e = 0.into();
        }
    };
    for (_, x) in plan.families.iter_mut() {
        x.accesses.iter_mut().flat_map(|a| &mut a.region).for_each(|r| same(&mut r.0));
    }
    let failure = mk_prove::valid::verify(&plan).expect_err("one slot, a launch back");
    assert!(failure.violations.iter().any(|v| v.rule() == 1), "{failure}");
}

/// A block that a launch does not fill has its words nevertheless: not without the credit.
#[test]
fn the_credit_is_what_a_block_lacks() {
    let draft = || {
        let mut d = SMALL.draft();
        let arrived = harness::flow(&d, "arrived");
        d.flows[arrived].from[1].amount = 0.into();
        d
    };
    let failure = mk_prove::valid::verify(&harness::plan(draft()).expect("a plan"));
    let failure = failure.expect_err("without credit");
    assert!(failure.violations.iter().any(|v| v.rule() == 3), "{failure}");
}

const TWO_BLOCKS: Packed = Packed { tokens: 80, ..SMALL };

/// Why the verifier rejects a changed plan, by this rule.
fn refused(rule: u8, change: impl FnOnce(&mut Plan)) -> String {
    let mut plan = harness::plan(TWO_BLOCKS.draft()).expect("a plan");
    change(&mut plan);
    let failure = mk_prove::valid::verify(&plan).expect_err("a changed plan");
    assert!(failure.violations.iter().any(|v| v.rule() == rule), "{failure}");
    failure.to_string()
}

fn family<'p>(plan: &'p mut Plan, name: &str) -> &'p mut mk_plan::Family {
    plan.families.iter_mut().find(|(_, x)| x.name == name).expect("a family").1
}

/// Tables say where memory is read, and words are those of the place.
#[test]
fn tables_choose_what_is_read_and_awaited() {
    refused(1, |p| family(p, "combine").waits[0].index[0] = Var::RANK.into());
    refused(1, |p| family(p, "combine").waits[0].index[1] = 0.into());
    // The row behind a place need not be there.
    let text = refused(5, |p| {
        let row = &mut family(p, "combine").accesses[0].region[0].0;
        *row = (row.clone() + 1) % (2 * BLOCK);
    });
    assert!(text.contains("stale read"), "{text}");
    // Nor rows behind those of a block, which nobody has pulled.
    refused(5, |p| {
        for name in ["gemm1", "gemm2"] {
            family(p, name).accesses.iter_mut().filter(|a| a.operand != Operand::B).for_each(|a| {
                a.region[0].1 = BLOCK.into();
            });
        }
    });
}

/// The group of a block is no amount: nothing is shown for those.
#[test]
fn groups_choose_and_rows_count() {
    let text = refused(5, |p| {
        let table = p.tables.iter().find(|(_, t)| t.name == "blocks").expect("blocks").0;
        let group = at(table, vec![Var::domain(0).into(), 0.into()]);
        let when = Some(group.equals(0));
        family(p, "pull").posts[0].when = when;
    });
    assert!(text.contains("a block's group, or a place, decides how much there is"), "{text}");
}

#[test]
fn each_contribution_has_a_factor() {
    let text = refused(6, |p| {
        let each = family(p, "combine").accesses[1].each.as_mut().expect("a repetition");
        each.extent = 1.into();
    });
    assert!(text.contains("contribution number 1 has no factor `w` of one element"), "{text}");
}

/// The executor refuses tables that no launch can have.
#[test]
fn launches_have_the_tables_that_are_proved() {
    let plan = harness::plan(SMALL.draft()).expect("a plan");
    let run = |name: &'static str, change: fn(&mut Vec<i32>)| {
        let tables = |epoch, rank, of: &str| {
            let mut values = SMALL.table(Routing::Random, epoch, rank, of);
            if (of, rank) == (name, 1) {
                change(&mut values);
            }
            values
        };
        harness::fails(&plan, &tables)
    };
    assert!(run("place", |v| v[1] = BLOCK - 1).contains("is none that tab1 fills there"));
    assert!(run("counts", |v| v[0] = 41).contains("the entry 41 is outside 0..=40"));
    assert!(
        run("source_rank", |v| v.truncate(127)).contains("has 128 entries, the caller gave 127")
    );
}

/// The tables on which proofs are run are such that a launch could have them.
#[test]
fn samples_are_tables_of_launches() {
    let tight = Packed { tokens: 300, experts: 3, slots: 1, ..LAYER };
    for packed in [LAYER, SMALL, tight] {
        let plan = harness::plan(packed.draft()).expect("a plan");
        for kind in mk_prove::valid::TableKind::ALL {
            let tables = mk_prove::valid::sample_tables(&plan, *kind);
            assert_eq!(tables.refused(&plan), None, "{kind:?}");
        }
    }
}
