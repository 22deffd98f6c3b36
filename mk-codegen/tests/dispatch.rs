//! Tokens to the ranks of their experts and back: plans, proofs, what becomes of them without an edge, and numbers on the executor.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_codegen::{
    emit, equivalence,
    passes::{LowerError, compile, lower},
    plan::{
        Access, BufId, Expr, Family, Mode, NO_EXPERT, Operand, Plan, PointError, Points, RoutePart,
        Routing, Space, TabId, TableSet, TableSource, Task, Var,
    },
    settings::{self, Config, NicOrdering},
    sim::{self, Callbacks, Options},
    valid,
};
use mk_syntax::{Bound, Program};
use proptest::{
    collection::vec,
    prelude::{ProptestConfig, any},
    test_runner::TestRunner,
};
use std::collections::{BTreeMap, BTreeSet};

const DISPATCH: &str = "fn dispatched(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), w: bf16[E, H, N] @ shard(0)) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w)
}";
const LAYER: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// Sizes of a run: tokens, slots, experts and blocks of a rank; on so many ranks.
#[derive(Clone, Copy, Debug)]
struct Case {
    source: &'static str,
    ranks: usize,
    tokens: usize,
    slots: usize,
    experts: usize,
    blocks: usize,
}

/// The layer with experts of 64 bits, as `torch.topk` has them, and room for any routing.
const WIDE: &str =
    "fn layer(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// The layer, which returns gates and ups for its backward.
const SAVES: &str =
    "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    let h = dispatch(x, ids, capacity = R) -> grouped_gemm(w1);
    (h -> swiglu -> grouped_gemm(w2) -> combine(gate), h)
}";

/// The first kernel of its backward: gradients of gates and ups.
const HIDDEN: &str = "fn hidden(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), w2: bf16[E, F, H] @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    dispatch(dy, ids, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h)
}";

/// The same with the weights of tokens, for gradients of matrices, too; rows are dispatched for those.
const WEIGHTED: &str = "fn hidden(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, F, H] @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    let rows = dispatch(dy, ids, gate, capacity = R);
    (rows -> grouped_gemm(w2.t) -> swiglu_grad(h), rows)
}";

/// All of the way back of tokens, in one kernel, with what gradients of matrices are made of.
const BACKWARD: &str = "fn back(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, G, H] @ shard(0), h: bf16[R, 2, G] @ shard(0),
    w1: bf16[E, H, 2, G] @ shard(0), ones: f32[T, K] @ shard(0)) {
    let rows = dispatch(dy, ids, gate, capacity = R);
    let dh = rows -> grouped_gemm(w2.t) -> swiglu_grad(h);
    (rows, dh, dh -> grouped_gemm(w1.t) -> combine(ones))
}";

/// Of gradients of tokens alone, of any number of them.
const BACKWARD_ANY: &str = "fn back<T: dyn <= 300>(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, G, H] @ shard(0),
    h: bf16[R, 2, G] @ shard(0), w1: bf16[E, H, 2, G] @ shard(0)) {
    dispatch(dy, ids, capacity = R) -> grouped_gemm(w2.t) -> swiglu_grad(h) -> grouped_gemm(w1.t) -> combine(gate)
}";

/// The same with weights behind the activation, and their gradients.
const WEIGHED: &str = "fn back(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, G, H] @ shard(0), h: bf16[R, 2, G] @ shard(0),
    w1: bf16[E, H, 2, G] @ shard(0), ones: f32[T, K] @ shard(0)) {
    let rows = dispatch(dy, ids, capacity = R);
    let u = rows -> grouped_gemm(w2.t);
    let dh = u -> weigh(gate) -> swiglu_grad(h);
    let a = h -> swiglu;
    (rows, dh, a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a), dh -> grouped_gemm(w1.t) -> combine(ones))
}";

/// Gradients of the weights.
const WEIGHTS: &str = "fn weights(a: bf16[R, F] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(dy)
}";

/// The same of rows of which some were dropped.
const WEIGHTS_KEPT: &str = "fn weights(a: bf16[R, F] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    ragged(a, ids, drop) -> grouped_gemm(w2) -> combine_grad(dy)
}";

/// The layer, which adds a tensor to its tokens' sums.
const ADDS: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0), s: bf16[T, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> add(s)
}";

/// The layer, of as many tokens as each rank brings, which adds as many rows of a tensor.
const OWN: &str = "fn layer<T: own>(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0), s: bf16[T, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate) -> add(s)
}";

/// Products of rows and as many gradients as each rank has.
const OWN_WEIGHTS: &str = "fn weights<T: own <= 42>(a: bf16[R, F] @ shard(0), ids: i32[T, K] @ shard(0), dy: bf16[T, H] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(dy)
}";

/// The layer with room for some rows of each expert; others are dropped, and counted.
const DROPS: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> (bf16[T, H] @ shard(0), i32[1] @ partial) {
    let rows = dispatch(x, ids, capacity = R, drop);
    (rows -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate), rows -> dropped)
}";

const H: usize = 24;
const N: usize = 40;
const F: usize = 16;
/// Whole steps of a product.
const G: usize = 64;

impl Case {
    fn dims(&self) -> BTreeMap<String, u64> {
        let rows = self.blocks * self.ranks * 128;
        let all = [
            ("T", self.tokens),
            ("K", self.slots),
            ("E", self.experts),
            ("R", rows),
            ("H", H),
            ("N", N),
            ("F", F),
            ("G", G),
        ];
        all.iter().map(|(name, n)| (name.to_string(), *n as u64)).collect()
    }

    fn bound(&self) -> (Program, Bound) {
        let program = Program::parse(self.source).unwrap_or_else(|e| panic!("{e}"));
        let has = |name: &String| program.symbol(name).is_some();
        let dims = self.dims().into_iter().filter(|(name, _)| has(name)).collect();
        let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
        (program, bound)
    }

    fn plan(&self, set: &str) -> Result<Plan, LowerError> {
        let (program, bound) = self.bound();
        let mut config = Config { ranks: self.ranks as u32, ..Config::default() };
        settings::read(&mut config, set).expect("settings");
        compile(&program, &bound, &config).map(|(plan, _)| plan)
    }

    /// Tokens of a rank.
    fn own(&self, rank: usize) -> std::ops::Range<usize> {
        let most = self.tokens.div_ceil(self.ranks);
        (rank * most).min(self.tokens)..((rank + 1) * most).min(self.tokens)
    }

    /// The experts of a token.
    fn route(&self, form: usize, epoch: i64, token: usize) -> Vec<i32> {
        let mix = number(epoch as u64 * 7919 + 13, token) as usize;
        let first = match (form + epoch as usize) % 4 {
            // By turns, all the same ones, half of them never, any; of some of those a slot is padding.
            0 => token * self.slots,
            1 => epoch as usize,
            2 => mix % (self.experts / 2).max(1),
            _ => mix,
        };
        let of = |j: usize| ((first + j) % self.experts) as i32;
        let none = |j: usize| mix.is_multiple_of(3) && (mix + j).is_multiple_of(4);
        match (form + epoch as usize) % 4 {
            3 => (0..self.slots).map(|j| if none(j) { NO_EXPERT } else { of(j) }).collect(),
            _ => (0..self.slots).map(of).collect(),
        }
    }

    fn routes(&self, form: usize, epoch: i64, tokens: std::ops::Range<usize>) -> Vec<i32> {
        tokens.flat_map(|t| self.route(form, epoch, t)).collect()
    }
}

/// A number for an element.
fn number(seed: u64, i: usize) -> u64 {
    let mut x =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 31;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x >> 40
}

/// Small, and a multiple of a power of two.
fn value(seed: u64, i: usize) -> f32 {
    (number(seed, i) % 17) as f32 / 8.0 - 1.0
}

type Given = BTreeMap<(i64, usize, String), Vec<f32>>;

/// Runs launches of a plan whose routing changes: what ranks were given, and what they have then.
fn run(
    case: &Case,
    plan: &Plan,
    schedule: sim::Schedule,
    ids: &dyn Fn(i64, usize) -> Vec<i32>,
) -> Result<(Given, Given), String> {
    let (mut given, mut found) = (Given::new(), Given::new());
    let name = |id: BufId| plan.buffers[id].name.clone();
    let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
        let seed = (epoch as u64) << 32 ^ (rank as u64) << 16 ^ id.to_string().as_bytes()[3] as u64;
        let values: Vec<f32> = match name(id).as_str() {
            "ids" => ids(epoch, rank).into_iter().map(|id| id as f32).collect(),
            _ => (0..shape.iter().product()).map(|i| value(seed, i)).collect(),
        };
        given.insert((epoch, rank, name(id)), values.clone());
        values
    };
    let table = |_: i64, _: usize, id: TabId| panic!("{id} is the caller's tensor, or made of it");
    let output = |epoch: i64, rank: usize, id: BufId, _: &[usize], values: &[f32]| {
        found.insert((epoch, rank, name(id)), values.to_vec());
    };
    let options = Options { schedule, seed: 7, launches: 4, check: true, ..Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options).map_err(|e| e.to_string())?;
    let results = plan.buffers.values().filter(|b| b.space == Space::Out).count();
    assert_eq!(found.len(), 4 * case.ranks * results);
    Ok((given, found))
}

/// A row through its expert, and for each sum that of its contributions' sizes.
fn product(x: &[f64], w: &[f32], e: usize, columns: usize) -> Vec<(f64, f64)> {
    let at = |k: usize, j: usize| f64::from(w[(e * x.len() + k) * columns + j]);
    let sum = |j: usize| {
        let terms = x.iter().enumerate().map(|(k, x)| x * at(k, j));
        terms.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()))
    };
    (0..columns).map(sum).collect()
}

/// Compares every launch and rank with sums in f64.
fn right(case: &Case, form: usize, schedules: &[sim::Schedule]) {
    let plan = case.plan("").unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let route = |epoch: i64, token: usize| case.route(form, epoch, token);
    right_of(case, &plan, &route, schedules);
}

/// The same, of the experts of each token in each launch.
fn right_of(
    case: &Case,
    plan: &Plan,
    route: &dyn Fn(i64, usize) -> Vec<i32>,
    schedules: &[sim::Schedule],
) {
    let ids = |epoch: i64, rank: usize| -> Vec<i32> {
        case.own(rank).flat_map(|token| route(epoch, token)).collect()
    };
    for schedule in schedules {
        let ran = run(case, plan, *schedule, &ids);
        let (given, found) = ran.unwrap_or_else(|e| panic!("{case:?} under {schedule}: {e}"));
        for ((epoch, rank, name), values) in &found {
            let of = |rank: usize, name: &str| &given[&(*epoch, rank, name.to_string())];
            let most = case.tokens.div_ceil(case.ranks);
            let own = case.experts.div_ceil(case.ranks);
            // By source and token: those behind the first ones that an expert has room for are dropped.
            let drops = case.source == DROPS;
            let keep = if drops { case.blocks / own * 128 } else { usize::MAX };
            let kept = |token: usize, expert: i32| {
                let before = (0..token).filter(|t| route(*epoch, *t).contains(&expert));
                before.count() < keep
            };
            if name == "out1" {
                let named =
                    case.own(*rank).flat_map(|t| route(*epoch, t).into_iter().map(move |e| (t, e)));
                let lost = named.filter(|(t, e)| *e != NO_EXPERT && !kept(*t, *e)).count();
                assert_eq!(values[..], [lost as f32], "{case:?} rank {rank}");
                continue;
            }
            let x = |t: usize| -> Vec<f64> {
                let row = &of(t / most, "x")[t % most * H..][..H];
                row.iter().map(|x| f64::from(*x)).collect()
            };
            let near = |got: f32, (want, size): (f64, f64), what: String| {
                let off = (f64::from(got) - want).abs();
                assert!(off <= size / 128.0 + 1e-3, "{case:?} {what}: {got}, not {want}");
            };
            if case.source != DISPATCH {
                assert_eq!(values.len(), case.own(*rank).len() * H);
                for (i, t) in case.own(*rank).enumerate() {
                    let mut sum = vec![(0.0, 0.0); H];
                    for (j, e) in route(*epoch, t).into_iter().enumerate() {
                        if e == NO_EXPERT {
                            continue;
                        }
                        if drops && !kept(t, e) {
                            continue;
                        }
                        let (home, e) = (e as usize / own, e as usize % own);
                        let h = product(&x(t), of(home, "w1"), e, 2 * F);
                        let (gate, up) = h.split_at(F);
                        let gated = |((g, _), (u, _)): (&(f64, f64), &(f64, f64))| {
                            g / (1.0 + (-g).exp()) * u
                        };
                        let h: Vec<f64> = gate.iter().zip(up).map(gated).collect();
                        let weight = f64::from(of(*rank, "gate")[i * case.slots + j]);
                        for (sum, y) in sum.iter_mut().zip(product(&h, of(home, "w2"), e, H)) {
                            *sum = (sum.0 + weight * y.0, sum.1 + (weight * y.1).abs());
                        }
                    }
                    for (c, want) in sum.into_iter().enumerate() {
                        near(values[i * H + c], want, format!("token {t}, column {c}"));
                    }
                }
                continue;
            }
            // Packed rows of the rank, in the order of experts and tokens.
            let mut at = 0;
            let mut written = vec![false; case.blocks * 128];
            for e in 0..own {
                for t in 0..case.tokens {
                    if !route(*epoch, t).contains(&((rank * own + e) as i32)) {
                        continue;
                    }
                    for (c, want) in product(&x(t), of(*rank, "w"), e, N).into_iter().enumerate() {
                        near(values[at * N + c], want, format!("row {at}, column {c}"));
                    }
                    written[at] = true;
                    at += 1;
                }
                at = at.next_multiple_of(128);
            }
            for (row, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
                let untouched = values[row * N..][..N].iter().all(|x| x.is_nan());
                assert!(untouched, "row {row} of nobody is written");
            }
        }
    }
}

const SMALL: Case = Case { source: LAYER, ranks: 2, tokens: 42, slots: 2, experts: 4, blocks: 2 };

/// The layer, of which each launch has another number of tokens.
const ANY: &str = "fn layer<T: dyn <= 300>(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// Rows of any number of tokens, with weights.
const ANY_WEIGHTED: &str = "fn hidden<T: dyn <= 300>(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    dispatch(dy, ids, gate) -> grouped_gemm(w2.t)
}";

/// Nodes of some ranks: tokens cross once to each node that has one of their experts. Chunks are more than one, and
/// ranks have fewer tokens than others, or none.
#[test]
fn over_nodes() {
    let worlds = (2..=4).flat_map(|nodes| (1..=4).map(move |local| (nodes, local)));
    for (form, (nodes, local)) in drawn::some(worlds.enumerate(), 4) {
        let ranks = nodes * local;
        let tokens: usize = if form == 0 { 264 * ranks } else { [2 * ranks + 1, 1, 42][form % 3] };
        let (source, experts) = ([LAYER, WIDE][form % 2], 2 * ranks);
        let blocks = 2 * tokens.div_ceil(128);
        let case = Case { source, ranks, tokens, slots: 2, experts, blocks };
        let net = [NicOrdering::InOrder, NicOrdering::Unordered][form % 2];
        let [world, nodes] = [ranks, nodes].map(|n| n as u32);
        let config = Config { ranks: world, nodes, net, ..Config::default() };
        let (program, bound) = case.bound();
        let (plan, _) =
            compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let route = |epoch: i64, token: usize| case.route(form, epoch, token);
        right_of(&case, &plan, &route, &sim::Schedule::all(ranks));
    }
}

/// Sums of ranks instead of rows: the same results, of any form of the layer, and no row is read over a link on its way
/// back. Ranks have unequally many tokens and experts, or none.
#[test]
fn sums_of_ranks() {
    let worlds: [(usize, usize, usize); 4] = [(2, 2, 5), (3, 3, 8), (4, 2, 10), (8, 4, 16)];
    let all =
        [LAYER, WIDE, DROPS, WEIGHTS].iter().flat_map(|source| worlds.map(|world| (source, world)));
    for (form, (source, (ranks, slots, experts))) in drawn::some(all.enumerate(), 6) {
        let tokens: usize = if form == 0 { 264 * ranks } else { [2 * ranks + 1, 1, 42][form % 3] };
        let blocks = experts.div_ceil(ranks) * tokens.div_ceil(128);
        let case = Case { source, ranks, tokens, slots, experts, blocks };
        let plan = case.plan("combine=sums").unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let back = |f: &&Family| ["combine.rank", "combine.own", "combine"].contains(&&f.name[..]);
        let read = plan.families.values().filter(back).flat_map(|f| &f.accesses);
        let read: Vec<_> = read.filter(|a| a.operand == Operand::Src).map(|a| &a.rank).collect();
        assert_eq!(read, vec![&Expr::Var(Var::RANK); 3], "{case:?}");
        emit::emit(&plan).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let route = |epoch: i64, token: usize| case.route(form, epoch, token);
        if *source == WEIGHTS {
            right_products(&case, &plan, &route);
        } else {
            right_of(&case, &plan, &route, &sim::Schedule::all(ranks));
        }
    }
}

/// Compares products of rows and their tokens' gradients with f64.
fn right_products(case: &Case, plan: &Plan, route: &dyn Fn(i64, usize) -> Vec<i32>) {
    let ids = |epoch: i64, rank: usize| -> Vec<i32> {
        case.own(rank).flat_map(|token| route(epoch, token)).collect()
    };
    let own = case.experts.div_ceil(case.ranks);
    for schedule in sim::Schedule::all(case.ranks) {
        let ran = run(case, plan, schedule, &ids);
        let (given, found) = ran.unwrap_or_else(|e| panic!("{case:?} under {schedule}: {e}"));
        for ((epoch, rank, _), values) in &found {
            let of = |rank: usize, name: &str| &given[&(*epoch, rank, name.to_string())];
            let rows = |e: i32, tokens: usize| {
                (0..tokens).filter(|t| route(*epoch, *t).contains(&e)).count()
            };
            for (i, t) in case.own(*rank).enumerate() {
                let dy = &of(*rank, "dy")[i * H..][..H];
                for (j, e) in route(*epoch, t).into_iter().enumerate() {
                    let (mut want, mut size) = (0.0, 0.0);
                    if e != NO_EXPERT {
                        let home = e as usize / own;
                        let before = (home * own) as i32..e;
                        let before = before.map(|e| rows(e, case.tokens).next_multiple_of(128));
                        let row = before.sum::<usize>() + rows(e, t);
                        let a = of(home, "a")[row * F..][..F].iter().map(|x| f64::from(*x));
                        let a: Vec<f64> = a.collect();
                        let y = product(&a, of(home, "w2"), e as usize % own, H);
                        for ((y, y_size), dy) in y.into_iter().zip(dy) {
                            want += y * f64::from(*dy);
                            size += y_size * f64::from(dy.abs());
                        }
                    }
                    let got = f64::from(values[i * case.slots + j]);
                    let off = (got - want).abs();
                    assert!(off <= size / 128.0 + 1e-3, "{case:?} token {t}: {got}, not {want}");
                }
            }
        }
    }
}

/// One kernel, and one proof, for every number of tokens up to a bound: some numbers by a seed that is printed;
/// `cargo xtask sweep tokens` takes every one.
#[test]
fn every_number_of_tokens() {
    let all = drawn::whole();
    let seed = std::env::var("MK_SEED").ok().and_then(|s| s.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64);
    let seed: u64 = seed.unwrap_or_else(now);
    println!("MK_SEED={seed}");
    for ranks in 1..=4 {
        let of = |tokens| Case {
            source: ANY,
            ranks,
            tokens,
            slots: 2,
            experts: 4 * ranks - 1,
            blocks: 0,
        };
        let (program, bound) = of(300).bound();
        let config = Config { ranks: ranks as u32, ..Config::default() };
        let (plan, proof) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
        let sampled = proof.sampled.expect("some values");
        assert_eq!((sampled.max, sampled.values[0]), (300, 300));
        let (dim, _) = plan.runtime_dim().expect("tokens");
        assert!(sampled.values.contains(&0), "{:?}", sampled.values);
        let drawn = |i| 1 + number(seed, 8 * ranks + i) as usize % 300;
        let some = [0, 1, ranks, ranks + 1, 300].into_iter().chain((0..4).map(drawn)).collect();
        let values: Vec<usize> = if all { (0..=300).collect() } else { some };
        for tokens in values {
            let case = of(tokens);
            let route = |epoch: i64, token: usize| case.route(tokens, epoch, token);
            right_of(&case, &plan.at(dim, tokens as i32), &route, &[sim::Schedule::Random]);
        }
    }
}

/// Experts, and a dense chain of the same tokens, in one kernel.
#[test]
fn text_of_a_shared_expert() {
    let source = include_str!("../../examples/shared_expert.mk");
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let sizes = [("T", 42), ("H", 64), ("I", 64), ("E", 4), ("K", 2), ("F", 256)];
    let sizes = sizes.map(|(name, n)| (name.to_string(), n)).into();
    let bound = program.bind(&sizes, &BTreeMap::new()).expect("binds");
    let config = Config { ranks: 2, ..Config::default() };
    let (plan, _) = compile(&program, &bound, &config).unwrap_or_else(|e| panic!("{e}"));
    insta::assert_snapshot!("shared_expert", plan.to_string());
    let source = emit::emit(&plan).unwrap_or_else(|e| panic!("{e}"));
    let generated = source.cuda.split_once(emit::library::END).expect("the library ends").1;
    insta::assert_snapshot!("cuda_shared_expert", generated);
}

#[test]
fn texts() {
    for (name, case) in [
        ("dispatch_alone", Case { source: DISPATCH, ..SMALL }),
        ("dispatch_layer", SMALL),
        ("dispatch_any", Case { source: ANY, tokens: 300, ..SMALL }),
        ("dispatch_drops", Case { source: DROPS, ..SMALL }),
        ("dispatch_saves", Case { source: SAVES, ..SMALL }),
        ("dispatch_hidden", Case { source: HIDDEN, ..SMALL }),
        ("dispatch_weighted", Case { source: WEIGHTED, ..SMALL }),
        ("dispatch_any_weighted", Case { source: ANY_WEIGHTED, tokens: 300, ..SMALL }),
        ("dispatch_backward", Case { source: BACKWARD, ..SMALL }),
        ("dispatch_backward_any", Case { source: BACKWARD_ANY, tokens: 300, blocks: 8, ..SMALL }),
        ("dispatch_weighed", Case { source: WEIGHED, ..SMALL }),
        ("dispatch_weighed_sums", Case { source: WEIGHED, ..SMALL }),
        ("combine_grad", Case { source: WEIGHTS, ..SMALL }),
        ("combine_grad_kept", Case { source: WEIGHTS_KEPT, ..SMALL }),
        ("combine_adds", Case { source: ADDS, ..SMALL }),
        ("own_rows", Case { source: OWN, ..SMALL }),
        ("own_rows_alone", Case { source: OWN, ranks: 1, ..SMALL }),
        ("own_weights", Case { source: OWN_WEIGHTS, ..SMALL }),
        ("combine_sums", SMALL),
        ("combine_grad_sums", Case { source: WEIGHTS, ..SMALL }),
    ] {
        let plan = case
            .plan(if name.ends_with("_sums") { "combine=sums" } else { "" })
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
        insta::assert_snapshot!(name, text);
        let source = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = source.cuda.split_once(emit::library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("cuda_{name}"), generated);
    }
}

/// Rows of which each rank has its own number are tokens, on one node, of a bound that ranks divide.
#[test]
fn own_rows_are_tokens() {
    let layer = Case { source: OWN, ..SMALL };
    let refused = |case: Case, says: &str| {
        let error = case.plan("").expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("\n  help: let"), "{error}");
    };
    let dense = "fn f<T: own>(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
        w: bf16[E, H, H] @ shard(0), v: bf16[H, N]) {
        (dispatch(x, ids) -> grouped_gemm(w) -> combine(gate), gemm(x, v))
    }";
    refused(Case { source: dense, ..SMALL }, "a dense operation stands beside its rows");
    let only = "fn f<T: own>(x: bf16[T, H] @ shard(0), v: bf16[H, N]) { gemm(x, v) }";
    refused(Case { source: only, ..SMALL }, "a dense operation stands beside its rows");
    let counted = "fn f<R: own>(x: bf16[R, H] @ shard(0), n: i32[E] @ shard(0), w: bf16[E, H, N] @ shard(0)) {
        ragged(x, n) -> grouped_gemm(w)
    }";
    refused(Case { source: counted, ..SMALL }, "and they are no tokens");
    refused(Case { tokens: 41, ..layer }, "which ranks have no equal parts of");
    let (program, bound) = layer.bound();
    let config = Config { ranks: 2, nodes: 2, ..Config::default() };
    let error = lower(&program, &bound, &config).expect_err("nodes").to_string();
    assert!(error.contains("over several nodes\n  help: declare them `dyn`"), "{error}");
    let (program, bound) = Case { source: ANY_WEIGHTED, tokens: 300, ..SMALL }.bound();
    let error = lower(&program, &bound, &config).expect_err("nodes").to_string();
    assert!(error.contains("over several nodes\n  help: let their number be fixed"), "{error}");
}

#[test]
fn numbers() {
    let two = [sim::Schedule::Random, sim::Schedule::Reversed];
    for (i, ranks) in [1, 2, 3, 4, 8].into_iter().enumerate() {
        let layer = if i % 2 == 0 { LAYER } else { WIDE };
        for (source, slots) in [(DISPATCH, [1, 2, 8][i % 3]), (layer, [2, 1, 8][i % 3])] {
            // And of experts.
            let experts: usize = [8, 9, 8, 10, 15][i];
            let own = experts.div_ceil(ranks);
            // Ranks have unequally many tokens.
            let tokens = 18 * ranks + 1;
            let most = tokens * slots.min(own);
            let blocks = (most + own * 127) / 128;
            right(&Case { source, ranks, tokens, slots, experts, blocks }, i, &two);
        }
    }
    right(&SMALL, 3, &sim::Schedule::all(2));
    // Fewer blocks than experts: there are no more rows.
    for source in [LAYER, WIDE] {
        right(&Case { source, tokens: 3, slots: 1, experts: 8, blocks: 3, ..SMALL }, 3, &two);
    }
}

/// What an expert has no room for is dropped and counted, and the same in every order of execution; the rest of a token is there.
#[test]
fn rows_without_room_are_dropped() {
    let two = [sim::Schedule::Random, sim::Schedule::Reversed];
    for (ranks, experts) in [(1usize, 2usize), (2, 2), (3, 8), (4, 4), (8, 8)] {
        // All tokens go to the same experts in the launches that have the second form, and to the first half of them in the third.
        let tokens = 150 + 7 * ranks;
        let blocks = experts.div_ceil(ranks);
        right(&Case { source: DROPS, ranks, tokens, slots: 2, experts, blocks }, 1, &two);
    }
}

/// The count of dropped rows is of what experts keep, of all chunks, and behind where their rows begin.
#[test]
fn only_what_was_dropped_is_counted() {
    let plan = Case { source: DROPS, ..SMALL }.plan("").expect("a plan");
    let text = plan.to_string();
    let (before, of_family) = text.split_once("\"dropped\" role").expect("the family");
    let wait = of_family.lines().find(|line| line.starts_with("  wait")).expect("its wait");
    for (from, to) in [
        ("keep=128", "keep=256"),
        ("[0 : 2, 0 : 72]", "[0 : 1, 0 : 72]"),
        ("[0 : 3, 0 : 4]", "[0 : 2, 0 : 4]"),
        (wait, ""),
    ] {
        let changed = of_family.replacen(from, to, 1);
        assert_ne!(changed, of_family, "{from}");
        let changed = format!("{before}\"dropped\" role{changed}");
        let accepted = changed.parse::<Plan>().is_ok_and(|plan| valid::verify(&plan).is_ok());
        assert!(!accepted, "{from} became {to}");
    }
}

/// What tasks read over links: each token once on each rank that has an expert of it, and each token's contributions.
#[test]
fn tokens_travel_once_to_each_rank() {
    for (ranks, slots, experts) in [(2usize, 2usize, 4usize), (3, 3, 8), (4, 8, 32), (8, 8, 16)] {
        let tokens = 40 * ranks + 1;
        let case = Case { source: WIDE, ranks, tokens, slots, experts, blocks: 0 };
        let (program, bound) = case.bound();
        let config = Config { ranks: ranks as u32, ..Config::default() };
        let plan = lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let launches = 3;
        let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
            match plan.buffers[id].name.as_str() {
                "ids" => {
                    case.routes(3, epoch, case.own(rank)).iter().map(|id| *id as f32).collect()
                }
                _ => vec![0.5; shape.iter().product()],
            }
        };
        let table = |_: i64, _: usize, id: TabId| panic!("{id} is made of the caller's tensor");
        let output = |_: i64, _: usize, _: BufId, _: &[usize], _: &[f32]| {};
        let options = Options { seed: 3, launches, ..Options::default() };
        let report = sim::run(&plan, &mut Callbacks { input, table, output }, &options);
        let report = report.unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let own = experts.div_ceil(ranks);
        let (mut once, mut each) = (0, 0);
        for (epoch, t) in (1..=launches as i64).flat_map(|e| (0..tokens).map(move |t| (e, t))) {
            let home = t / tokens.div_ceil(ranks);
            let there = case.route(3, epoch, t).into_iter().filter(|e| *e != NO_EXPERT);
            let at = there.map(|e| e as usize / own);
            let there: Vec<usize> = at.filter(|rank| *rank != home).collect();
            each += there.len() as u64;
            once += there.into_iter().collect::<BTreeSet<_>>().len() as u64;
        }
        let row = 2 * H as u64;
        for (id, family) in plan.families.iter() {
            let pulled =
                report.pulled_bytes[id.to_string()[3..].parse::<usize>().expect("a number")];
            let want = match family.name.as_str() {
                "fetch" => once * row,
                "combine" => each * row,
                _ => 0,
            };
            assert_eq!(pulled, want, "{case:?}: {}", family.name);
        }
        assert!(slots < 3 || once < each, "{case:?}: {once} of {each}");
    }
}

/// Any routing, on any world: nothing but what the ids say decides what comes out.
#[test]
fn any_routing() {
    let case = |(ranks, slots, experts): (usize, usize, usize)| {
        let case = Case { source: WIDE, ranks, tokens: 6 * ranks + 1, slots, experts, blocks: 0 };
        let (program, bound) = case.bound();
        let config = Config { ranks: ranks as u32, ..Config::default() };
        (case, lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{case:?}: {e}")))
    };
    let cases = [(1, 1, 1), (1, 8, 9), (2, 2, 5), (3, 3, 8), (4, 2, 10), (8, 4, 16)].map(case);
    let mut runner = TestRunner::new(ProptestConfig { cases: 48, ..ProptestConfig::default() });
    let routings = (0..cases.len(), vec(any::<u32>(), 4 * 49));
    let judge = |(which, order): (usize, Vec<u32>)| {
        let (case, plan) = &cases[which];
        // The experts of a token, by numbers that each token has for them; few of them, so that some are of nobody.
        let route = |epoch: i64, token: usize| {
            let seed = order[(epoch as usize % 4) * 49 + token % 49];
            let open = case.slots.max(seed as usize % 7).min(case.experts);
            let mut all: Vec<i32> = (0..open as i32).collect();
            if seed & 8 != 0 {
                all.iter_mut().for_each(|e| *e += (case.experts - open) as i32);
            }
            all.sort_by_key(|e| number(u64::from(seed), *e as usize));
            all.truncate(case.slots);
            // Any of them may be padding, or all are.
            let none = |j: usize| seed >> 16 & 7 == 7 || seed >> (20 + j % 8) & 3 == 3;
            all.iter_mut().enumerate().filter(|(j, _)| none(*j)).for_each(|(_, e)| *e = NO_EXPERT);
            all
        };
        right_of(case, plan, &route, &[sim::Schedule::Random]);
        Ok(())
    };
    runner.run(&routings, judge).unwrap_or_else(|e| panic!("{e}"));
}

/// Every wait, every post and every look-up is needed, but two waits.
#[test]
fn nothing_can_be_left_out() {
    let plan = Case { tokens: 20, slots: 1, experts: 2, blocks: 1, ..SMALL }.plan("");
    let plan = plan.expect("a plan");
    let mut kept = Vec::new();
    let mut n = 0;
    for (id, f) in plan.families.iter() {
        let mut without = |what: String, change: &dyn Fn(&mut Plan)| {
            let mut less = plan.clone();
            change(&mut less);
            n += 1;
            if valid::verify(&less).is_ok() {
                kept.push(format!("{}: {what}", f.name));
            }
        };
        for i in 0..f.waits.len() {
            let name = &plan.signals[f.waits[i].signal].name;
            without(format!("wait {name}"), &|p| drop(p.families[id].waits.remove(i)));
        }
        for i in 0..f.posts.len() {
            let name = &plan.signals[f.posts[i].signal].name;
            without(format!("post {name}"), &|p| drop(p.families[id].posts.remove(i)));
        }
        for i in (0..f.accesses.len()).filter(|i| f.accesses[*i].operand.name() == "tab") {
            without("tab".into(), &|p| drop(p.families[id].accesses.remove(i)));
        }
    }
    // Rows arrive behind the table that they are pulled by, and a product that looks that up waits for it nevertheless: once. Before `y` is written
    // all ranks have entered, as tokens of all of them are there; and a rank that has staged tokens has entered before.
    let entered = ["fetch: wait entered", "fetch: wait entered"];
    assert_eq!(kept, [&entered[..], &["gemm1: wait counted", "gemm2: wait entered"]].concat());
    assert_eq!(n, 42);
}

/// And where rows have weights, and weights gradients: whatever is left out, no proof or no kernel is left.
#[test]
fn nothing_of_weights_can_be_left_out() {
    let small = Case { tokens: 20, slots: 2, experts: 4, blocks: 2, ..SMALL };
    for (source, set, names, least) in [
        (WEIGHTED, "", ["pull", "slots", "weights"], 12),
        (WEIGHTS, "", ["combine", "combine", "combine"], 6),
        (BACKWARD, "", ["gemm1", "gemm2", "combine"], 20),
        (WEIGHTS, "combine=sums", ["dy", "combine.rank", "combine.own"], 12),
        (BACKWARD, "combine=sums", ["combine.rank", "combine.own", "combine"], 12),
    ] {
        let plan = Case { source, ..small }.plan(set).expect("a plan");
        let mut n = 0;
        for (id, f) in plan.families.iter().filter(|(_, f)| names.contains(&f.name.as_str())) {
            let mut without = |what: String, change: &dyn Fn(&mut Plan)| {
                let mut less = plan.clone();
                change(&mut less);
                n += 1;
                let refused = valid::verify(&less).is_err() || emit::emit(&less).is_err();
                assert!(refused, "{}: {what}", f.name);
            };
            for i in 0..f.waits.len() {
                let name = &plan.signals[f.waits[i].signal].name;
                // Ranks have entered where others said what they have; what tables are made of, others wait for.
                if name != "entered" {
                    without(format!("wait {name}"), &|p| drop(p.families[id].waits.remove(i)));
                }
            }
            for i in 0..f.posts.len() {
                let name = &plan.signals[f.posts[i].signal].name;
                without(format!("post {name}"), &|p| drop(p.families[id].posts.remove(i)));
            }
            for i in 0..f.accesses.len() {
                without(format!("access {i}"), &|p| drop(p.families[id].accesses.remove(i)));
            }
        }
        assert!(n >= least, "{n}");
    }
}

/// A product of other rows, of more than one element, or without its own row, is none; nor are slots of other blocks, or
/// of the experts of some tokens.
#[test]
fn other_products_and_slots_are_found() {
    for (source, line, other) in [
        (
            WEIGHTS,
            "access w: read buf2 @ rank [i * 8 + q : 1, 0 : 24]",
            "access w: read buf2 @ rank [i * 8 + q : 1, 0 : 8]",
        ),
        (WEIGHTS, "[i * 8 + q : 1, j : 1]", "[i * 8 + q : 1, 0 : 2]"),
        (
            ADDS,
            "access e0: read buf5 @ rank [i * 8 + q : 1, 0 : 24]",
            "access e0: read buf5 @ rank [i * 8 + q : 1, 0 : 8]",
        ),
        (WEIGHTED, "part=slots", "part=sources"),
        (WEIGHTED, "\"slots\" [256] runtime 0..=1", "\"slots\" [256] runtime 0..=0"),
    ] {
        let text = Case { source, ..SMALL }.plan("").expect("a plan").to_string();
        let changed = text.replace(line, other);
        assert_ne!(changed, text, "{line}\n{text}");
        let refused = match changed.parse::<Plan>() {
            Ok(plan) => valid::verify(&plan).is_err(),
            Err(_) => true,
        };
        assert!(refused, "{other}");
    }
}

/// Gates meet the matrices of gates, and ups those of ups.
#[test]
fn other_halves_are_found() {
    let case = Case { source: BACKWARD, ..SMALL };
    let (program, bound) = case.bound();
    let text = case.plan("").expect("a plan").to_string();
    let says = |text: &str| {
        let plan: Plan = text.parse().expect("a plan");
        valid::verify(&plan).expect("is ordered");
        let found =
            equivalence::evaluate(&plan, &program, &bound, &equivalence::Options::default());
        found.map_or_else(|e| e.to_string(), |_| "the same".into())
    };
    assert_eq!(says(&text), "the same");
    for (line, other) in [
        ("q : 1, 0 : 64] at inner\n  access b", "0 : 1, 0 : 64] at inner\n  access b"),
        ("min(256, H - j * 256), q : 1", "min(256, H - j * 256), 1 - q : 1"),
    ] {
        let changed = text.replace(line, other);
        assert_ne!(changed, text, "{line}\n{text}");
        let said = says(&changed);
        assert!(said.contains("computes something else"), "{other}: {said}");
    }
}

/// Routings that no launch can have end it, with what is wrong.
#[test]
fn what_no_launch_can_have() {
    let case = Case { tokens: 300, slots: 2, experts: 4, blocks: 4, ..SMALL };
    let plans = [case, Case { source: WIDE, ..case }].map(|case| case.plan("").expect("a plan"));
    let says = |plan: &Plan, change: &dyn Fn(usize, &mut Vec<i32>)| {
        let ids = |epoch: i64, rank: usize| {
            let mut ids = case.routes(0, 4 * epoch, case.own(rank));
            change(rank, &mut ids);
            ids
        };
        let ran = run(&case, plan, sim::Schedule::Random, &ids);
        ran.map_or_else(|e| e, |_| "a launch".into())
    };
    assert_eq!(says(&plans[0], &|_, _| ()), "a launch");
    assert_eq!(says(&plans[1], &|_, _| ()), "a launch");
    type Change<'a> = &'a dyn Fn(usize, &mut Vec<i32>);
    let changes: [(&str, Change<'_>); 4] = [
        ("token 150 goes to expert 4, and there are 4", &|rank: usize, ids: &mut Vec<i32>| {
            if rank == 1 {
                ids[0] = 4;
            }
        }),
        ("goes to expert -2", &|_, ids| ids[7] = -2),
        ("token 3 goes to expert 1 twice", &|_, ids| ids[6..8].fill(1)),
        ("take 6 blocks, and there is room for 4", &|_, ids| {
            ids.chunks_mut(2).for_each(|two| two.copy_from_slice(&[0, 1]));
        }),
    ];
    for (text, change) in changes {
        let said = plans.each_ref().map(|plan| says(plan, change));
        // Without a capacity there is room for all of them.
        let instead = if text.contains("blocks") { "a launch" } else { text };
        assert!(said[0].contains(text) && said[1].contains(instead), "{said:?}");
    }
}

#[test]
fn what_has_no_kernel_is_refused() {
    let says = |case: Case| case.plan("").map_or_else(|e| e.to_string(), |_| "a plan".into());
    let narrow: &str = BACKWARD.replace('G', "F").leak();
    let dense = "fn f<T: dyn <= 300>(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w: bf16[E, H, F] @ shard(0), v: bf16[H, N]) {
        (dispatch(x, ids, gate) -> grouped_gemm(w), gemm(x, v))
    }";
    for (text, case) in [
        ("4 experts over 3 ranks: of 2 each, and some have none", Case { ranks: 3, ..SMALL }),
        (
            "a capacity of 1 blocks a rank, for 2 experts",
            Case { source: DROPS, blocks: 1, ..SMALL },
        ),
        ("8 experts of each token, of 4", Case { slots: 8, ..SMALL }),
        (
            "a bound of 300 rows, which ranks have no equal parts of",
            Case { source: ANY_WEIGHTED, ranks: 8, experts: 8, ..SMALL },
        ),
        // Of three tokens there is room for any routing.
        (
            "there is room for no routing: tokens go to their experts as 600 rows",
            Case { source: BACKWARD_ANY, tokens: 3, blocks: 1, ..SMALL },
        ),
        ("it sums over gates and ups of 16 columns", Case { source: narrow, ..SMALL }),
        ("a dense operation stands beside its rows", Case { source: dense, ..SMALL }),
    ] {
        let said = says(case);
        assert!(said.contains(text), "{said}");
    }
}

/// Samples for proofs need not be of one routing, and a launch's tables are.
#[test]
fn tables_follow_from_one_routing() {
    let plan = SMALL.plan("").expect("a plan");
    let parts: Vec<_> = plan.tables.values().filter_map(|t| t.routed).map(|r| r.part).collect();
    use RoutePart::{Counts, Kept, Places, Sources, Wanted};
    assert_eq!(parts, [Counts, Wanted, Sources, Places, Kept]);
    let runtime = |t: &&mk_codegen::plan::Table| matches!(t.source, TableSource::Runtime { .. });
    assert_eq!(plan.tables.values().filter(runtime).count(), 5);
    assert!(plan.buffers.values().any(|b| b.name == "y" && b.space == Space::Workspace));
    let ids = SMALL.routes(0, 1, 0..42);
    let routing =
        Routing { ids: &ids, slots: 2, experts: 4, ranks: 2, rows: 128, keep: 0, local: 0 };
    assert_eq!(routing.check(2), Ok(()));
}

/// Rows of tokens that ranks read of others: one for each rank that has an expert of the token, and is not its own.
#[test]
fn a_token_travels_once_to_a_rank() {
    for (form, (ranks, slots, experts, tokens)) in
        [(2, 2, 4, 42), (3, 3, 9, 70), (4, 8, 32, 67), (8, 8, 16, 64)].into_iter().enumerate()
    {
        let own = experts / ranks;
        let blocks = tokens * slots.min(own) / 128 + own + 1;
        let case = Case { source: LAYER, ranks, tokens, slots, experts, blocks };
        let (program, bound) = case.bound();
        let config = Config { ranks: ranks as u32, ..Config::default() };
        let plan = lower(&program, &bound, &config).expect("a plan");
        for epoch in 1..=4 {
            let ids = |rank: usize, _: TabId| case.routes(form, epoch, case.own(rank));
            let set = TableSet::routed(&plan, ids).expect("a routing");
            let points = Points::new(&plan, &set);
            let mut read = 0;
            for (id, f) in plan.families.iter() {
                let of_tokens = |a: &&Access| plan.buffers[a.buffer].name == "tokens";
                for a in f.accesses.iter().filter(of_tokens).filter(|a| a.mode == Mode::Read) {
                    for rank in 0..ranks {
                        for task in points.tasks(id, rank, epoch).expect("tasks") {
                            let count = |here: &Task| {
                                let of = points.eval(here, &a.rank)?;
                                read += usize::from(of != rank as i64);
                                Ok::<_, PointError>(())
                            };
                            let (each, when) = (a.each.as_ref(), a.when.as_ref());
                            points.for_each(&task, 0, each, when, count).expect("values");
                        }
                    }
                }
            }
            let travels = |token: usize| {
                let named = case.route(form, epoch, token).into_iter().filter(|e| *e != NO_EXPERT);
                let homes = named.map(|e| e as usize / own);
                let here = token / tokens.div_ceil(ranks);
                homes.filter(|home| *home != here).collect::<BTreeSet<_>>().len()
            };
            assert_eq!(read, (0..tokens).map(travels).sum::<usize>(), "{case:?}, {epoch}");
        }
    }
}
