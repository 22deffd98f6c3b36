//! A layer of experts and its derived backward, kernel behind kernel on the executor: every kernel reads what those
//! before it left, so that rows of nobody are NaN all the way. Results and gradients beside sums in f64 that are made
//! from the layer's formula alone.

use mk_codegen::{
    emit,
    passes::compile,
    plan::{BufId, Buffer, Plan, Space, TabId},
    settings::Config,
    sim::{self, Callbacks, Options},
};
use mk_function::cut::{Step, cut};
use mk_harness::{Layout, Routing};
use mk_syntax::{
    Bound, DType, Dim, Program, ValueId,
    grad::{Gradient, Input, Saves, Source, grad},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

/// Columns of tokens.
const H: usize = 16;

/// A layer on so many ranks, of so many tokens of the world.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub ranks: usize,
    pub tokens: usize,
    pub slots: usize,
    /// Experts of 64 bits.
    pub wide: bool,
    /// Whether each expert keeps a block of rows, and others are dropped.
    pub drops: bool,
    /// Whether each rank brings its own number of tokens, none of them among others.
    pub own: bool,
    /// Whether experts add vectors, before gates and to their results.
    pub biased: bool,
    /// Whether the number of tokens comes with each launch, which may have twice as many, and some more.
    pub any: bool,
}

/// A number, and how large the terms are that it is made of: what its roundings are relative to.
#[derive(Clone, Copy, Debug, Default)]
struct Real {
    x: f64,
    size: f64,
}

impl Real {
    fn given(x: f32) -> Real {
        Real { x: x.into(), size: f64::from(x).abs() }
    }

    fn times(self, other: Real) -> Real {
        Real { x: self.x * other.x, size: self.size * other.size }
    }

    fn add(&mut self, other: Real) {
        self.x += other.x;
        self.size += other.size;
    }

    fn dot(a: impl Iterator<Item = Real>, b: impl Iterator<Item = Real>) -> Real {
        let mut sum = Real::default();
        a.zip(b).for_each(|(a, b)| sum.add(a.times(b)));
        sum
    }

    /// `silu` and its slope, which are steep by 1.1 and .5 at most.
    fn silu(self) -> [Real; 2] {
        let s = 1.0 / (1.0 + (-self.x).exp());
        let slope = s * (1.0 + self.x * (1.0 - s));
        let of = |x: f64, steep: f64| Real { x, size: x.abs() + steep * self.size };
        [of(self.x * s, 1.1), of(slope, 0.5)]
    }
}

/// Values by rank, as ranks hold them.
type Held = BTreeMap<(usize, ValueId), Vec<f32>>;

/// A program with its sizes.
struct Sized<'p> {
    program: &'p Program,
    bound: Bound,
    ranks: usize,
}

impl Sized<'_> {
    fn layout(&self, id: ValueId, rank: usize) -> Layout {
        let placement = self.program.ty(id).expect("a value").placement[0];
        Layout::new(self.bound.shape(id).expect("a shape"), placement, self.ranks, rank)
    }

    /// The rows that a rank has of a value, among all.
    fn rows(&self, id: ValueId, rank: usize) -> std::ops::Range<usize> {
        let rows = self.layout(id, rank).rows();
        let own = self.program.is_own(self.program.ty(id).expect("a value").dims[0]);
        rows.start..if own { rows.start + own_rows(rank, rows.len()) } else { rows.end }
    }

    /// A rank's part of a whole.
    fn part(&self, id: ValueId, rank: usize, whole: &[f32]) -> Vec<f32> {
        let width: u64 = self.bound.shape(id).expect("a shape")[1..].iter().product();
        let rows = self.rows(id, rank);
        rows.flat_map(|r| &whole[r * width as usize..][..width as usize]).copied().collect()
    }

    /// The kernels of the program.
    fn kernels(&self, what: &str) -> Vec<Kernel> {
        let steps = cut(self.program, &self.bound, self.ranks as u32, &[]);
        let steps = steps.unwrap_or_else(|e| panic!("{what}: {e}"));
        steps.iter().map(|step| self.kernel(what, step)).collect()
    }

    fn kernel(&self, what: &str, step: &Step) -> Kernel {
        assert!(step.is_kernel, "{what}: {}", step.text);
        let shapes = step.inputs.iter().zip(step.program.tensors()).map(|(id, tensor)| {
            let mut shape = self.bound.shape(*id).expect("a shape").to_vec();
            if step.flat.contains(id) {
                let last = shape.pop().expect("columns");
                *shape.last_mut().expect("dimensions") *= last;
            }
            (tensor.name.clone(), shape)
        });
        let symbols = self.program.symbols().iter().zip(self.bound.sizes());
        let known = symbols.filter(|(s, _)| step.program.symbol(&s.name).is_some());
        let known = known.map(|(s, n)| (s.name.clone(), *n));
        let bound = step.program.bind(&known.collect(), &shapes.collect());
        let bound = bound.unwrap_or_else(|e| panic!("{what}: {e}\n{}", step.text));
        let config =
            Config { ranks: self.ranks as u32, block: [128, 128, 64], ..Config::default() };
        let made = compile(&step.program, &bound, &config);
        let (plan, _) = made.unwrap_or_else(|e| panic!("{what}: {e}\n{}", step.text));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{what}: {e}\n{}", step.text));
        let of_launch = plan.runtime_dim().and_then(|(dim, _)| {
            let symbol = step.program.symbol(&plan.dims[dim].name)?;
            Some(plan.at(dim, bound.dim(Dim::Sym(symbol))? as i32))
        });
        let plan = of_launch.unwrap_or(plan);
        let of = |space: Space| plan.buffers.iter().filter(move |(_, b)| b.space == space);
        let named = |b: &str| step.program.tensors().iter().position(|t| t.name == b);
        let read = |(id, b): (BufId, &Buffer)| Some((id, step.inputs[named(&b.name)?]));
        let read = of(Space::In).filter_map(read).collect();
        let written = of(Space::Out).map(|(id, _)| id).zip(step.results.iter().copied()).collect();
        Kernel { plan, read, written }
    }
}

/// A kernel, and which values its tensors are.
struct Kernel {
    plan: Plan,
    read: BTreeMap<BufId, ValueId>,
    written: BTreeMap<BufId, ValueId>,
}

impl Kernel {
    /// Adds to what ranks hold what a launch leaves.
    fn launch(&self, what: &str, held: &mut Held, seed: u64) {
        let mut left = Held::new();
        let mut caller = Callbacks {
            input: |_: i64, rank: usize, id: BufId, _: &[usize]| {
                let value = self.read.get(&id).and_then(|value| held.get(&(rank, *value)));
                // The executor refuses what is not there.
                value.cloned().unwrap_or_default()
            },
            table: |_: i64, _: usize, _: TabId| Vec::new(),
            output: |_: i64, rank: usize, id: BufId, _: &[usize], values: &[f32]| {
                left.extend(self.written.get(&id).map(|value| ((rank, *value), values.to_vec())));
            },
        };
        let options = Options { seed, launches: 1, check: true, ..Options::default() };
        let ran = sim::run(&self.plan, &mut caller, &options);
        ran.unwrap_or_else(|e| panic!("{what}, {}: {e}", self.plan.name));
        held.extend(left);
    }
}

/// The layer's tensors, whole.
struct Given {
    x: Vec<f32>,
    ids: Vec<i32>,
    gate: Vec<f32>,
    w1: Vec<f32>,
    w2: Vec<f32>,
    /// Zeros where none are added.
    b1: Vec<f32>,
    b2: Vec<f32>,
    /// The result's gradient.
    dy: Vec<f32>,
    slots: usize,
    /// Columns of gates.
    columns: usize,
    /// The most rows of an expert.
    keep: usize,
}

/// The result, and gradients of tokens, weights, matrices and vectors.
struct Wanted {
    y: Vec<Real>,
    x: Vec<Real>,
    gate: Vec<Real>,
    w1: Vec<Real>,
    w2: Vec<Real>,
    b1: Vec<Real>,
    b2: Vec<Real>,
}

impl Given {
    fn wanted(&self) -> Wanted {
        let gates = self.columns;
        let zeros = |n: &[f32]| vec![Real::default(); n.len()];
        let mut out = Wanted {
            y: zeros(&self.x),
            x: zeros(&self.x),
            gate: zeros(&self.gate),
            w1: zeros(&self.w1),
            w2: zeros(&self.w2),
            b1: zeros(&self.b1),
            b2: zeros(&self.b2),
        };
        let real = |list: &[f32]| list.iter().copied().map(Real::given).collect::<Vec<_>>();
        let mut rows = BTreeMap::<usize, usize>::new();
        for (slot, id) in self.ids.iter().enumerate() {
            let Ok(e) = usize::try_from(*id) else { continue };
            let row = rows.entry(e).or_default();
            *row += 1;
            if *row > self.keep {
                continue;
            }
            let t = slot / self.slots;
            let (x, dy) = (real(&self.x[t * H..][..H]), real(&self.dy[t * H..][..H]));
            // `[H, 2, I]` and `[I, H]`.
            let w1 = real(&self.w1[e * H * 2 * gates..][..H * 2 * gates]);
            let w2 = real(&self.w2[e * gates * H..][..gates * H]);
            let gate = Real::given(self.gate[slot]);
            let column = |c: usize| w1.iter().skip(c).step_by(2 * gates).copied();
            let mut h: Vec<Real> =
                (0..2 * gates).map(|c| Real::dot(x.iter().copied(), column(c))).collect();
            let b1 = real(&self.b1[e * 2 * gates..][..2 * gates]);
            h.iter_mut().zip(b1).for_each(|(h, b)| h.add(b));
            let mut of_gate = Real::default();
            for (n, b) in real(&self.b2[e * H..][..H]).into_iter().enumerate() {
                out.y[t * H + n].add(gate.times(b));
                of_gate.add(b.times(dy[n]));
                out.b2[e * H + n].add(gate.times(dy[n]));
            }
            for i in 0..gates {
                let ([silu, slope], up) = (h[i].silu(), h[gates + i]);
                let a = silu.times(up);
                let row = &w2[i * H..][..H];
                row.iter()
                    .zip(&mut out.y[t * H..])
                    .for_each(|(w, y)| y.add(gate.times(a).times(*w)));
                let u = Real::dot(row.iter().copied(), dy.iter().copied());
                of_gate.add(a.times(u));
                let da = gate.times(u);
                let dh = [da.times(up).times(slope), da.times(silu)];
                for (c, d) in [i, gates + i].into_iter().zip(dh) {
                    out.b1[e * 2 * gates + c].add(d);
                    for (k, x) in x.iter().enumerate() {
                        let at = (k * 2 * gates) + c;
                        out.x[t * H + k].add(d.times(w1[at]));
                        out.w1[e * H * 2 * gates + at].add(d.times(*x));
                    }
                }
                for (n, d) in dy.iter().enumerate() {
                    out.w2[(e * gates + i) * H + n].add(a.times(gate).times(*d));
                }
            }
            out.gate[slot] = of_gate;
        }
        out
    }
}

/// How many tokens a rank has of as many as it has room for.
fn own_rows(rank: usize, most: usize) -> usize {
    match rank % 3 {
        0 => (most * 2).div_ceil(3),
        1 => 0,
        _ => most,
    }
}

/// The layer, and its gradients of all that has some.
const LAYER: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0), w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

/// The layer with vectors that its experts add.
fn biased(text: &str) -> String {
    let parameters =
        "w2: bf16[E, I, H] @ shard(0), b1: bf16[E, 2, I] @ shard(0), b2: bf16[E, H] @ shard(0)";
    text.replace("w2: bf16[E, I, H] @ shard(0)", parameters)
        .replace("(w1)", "(w1) -> bias(b1)")
        .replace("(w2)", "(w2) -> bias(b2)")
}

impl Chain {
    /// Experts that ranks do not divide where there are three, and as many as slots at least.
    fn experts(&self) -> usize {
        if self.ranks == 3 { 5.max(self.slots) } else { (2 * self.ranks).max(self.slots) }
    }

    /// Columns of gates: whole steps, so that one kernel makes gradients of tokens; or fewer.
    fn columns(&self) -> usize {
        if self.wide { 24 } else { 64 }
    }

    /// The most tokens that a launch has room for.
    fn most(&self) -> usize {
        if self.any { (2 * self.tokens + 3).next_multiple_of(self.ranks) } else { self.tokens }
    }

    fn given(&self, routing: Routing, seed: u64) -> Given {
        let columns = self.columns();
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut list = |n: usize, by: f32| -> Vec<f32> {
            (0..n).map(|_| DType::Bf16.round(rng.random_range(-1.0..1.0) * by)).collect()
        };
        let (tokens, experts) = (self.tokens, self.experts());
        let mut ids = routing.route(tokens, self.slots, experts, seed, seed / 7);
        for (rank, ids) in ids.chunks_mut(tokens.div_ceil(self.ranks) * self.slots).enumerate() {
            let own = own_rows(rank, ids.len() / self.slots);
            ids.iter_mut().skip(own * self.slots).filter(|_| self.own).for_each(|id| *id = -1);
        }
        let mut vectors = |n: usize| -> Vec<f32> {
            let made = list(n, 1.0);
            if self.biased { made } else { vec![0.0; n] }
        };
        let [b1, b2] = [2 * columns, H].map(|n| vectors(experts * n));
        Given {
            b1,
            b2,
            x: list(tokens * H, 1.0),
            ids,
            w1: list(experts * H * 2 * columns, 0.5),
            w2: list(experts * columns * H, 0.5),
            dy: list(tokens * H, 1.0),
            gate: list(tokens * self.slots, 1.0),
            slots: self.slots,
            columns,
            keep: if self.drops { 128 } else { usize::MAX },
        }
    }

    /// Plans forward and backward, runs them under each routing, and compares each rank's part of all results.
    pub fn check(&self, routings: &[Routing], seed: u64) {
        let Chain { ranks, tokens, slots, .. } = *self;
        let text = if self.wide { LAYER.replace("ids: i32", "ids: i64") } else { LAYER.into() };
        let text = if self.drops { text.replace("= R", "= R, drop") } else { text };
        let text = if self.own { text.replace("fn layer", "fn layer<T: own>") } else { text };
        let any = format!("fn layer<T: dyn <= {}>", self.most());
        let text = if self.any { text.replace("fn layer", &any) } else { text };
        let text = if self.biased { biased(&text) } else { text };
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let wanted = [0, 2, 3, 4, 5, 6];
        let wanted = if self.biased { &wanted[..] } else { &wanted[..4] };
        let gradient = grad(&program, Some(wanted), Saves::default());
        let gradient = gradient.unwrap_or_else(|e| panic!("{e}"));
        let what = format!("{self:?}, seed {seed}");
        let experts = self.experts();
        let own = experts.div_ceil(ranks);
        let blocks = if self.drops { 0 } else { (self.most() * slots.min(own)).div_ceil(128) };
        let rows = ranks * 128 * (own + blocks);
        let columns = self.columns();
        let dims =
            [("T", tokens), ("H", H), ("I", columns), ("E", experts), ("K", slots), ("R", rows)];
        let sized = |program| Sized { program, bound: bind(program, &dims, &what), ranks };
        let forward = sized(&gradient.forward);
        let backward = sized(gradient.backward.as_ref().expect("a backward"));
        let kernels = [&forward, &backward].map(|sized| sized.kernels(&what));
        for routing in routings {
            let what = format!("{what}, {routing}");
            let given = self.given(*routing, seed);
            run(&what, &gradient, [&forward, &backward], &kernels, (&given, rows), seed);
        }
    }
}

fn run(
    what: &str,
    gradient: &Gradient,
    [forward, backward]: [&Sized<'_>; 2],
    kernels: &[Vec<Kernel>; 2],
    (given, rows): (&Given, usize),
    seed: u64,
) {
    let ids: Vec<f32> = given.ids.iter().map(|id| *id as f32).collect();
    let inputs = [&given.x, &ids, &given.gate, &given.w1, &given.w2, &given.b1, &given.b2];
    let mut held = Held::new();
    for rank in 0..forward.ranks {
        let parts = forward.program.tensors().iter().zip(inputs);
        held.extend(parts.map(|(t, whole)| ((rank, t.id), forward.part(t.id, rank, whole))));
    }
    kernels[0].iter().for_each(|kernel| kernel.launch(what, &mut held, seed));
    // What is saved has no value in rows of nobody.
    let mut named = BTreeMap::<i32, usize>::new();
    given.ids.iter().filter(|id| **id >= 0).for_each(|id| *named.entry(*id).or_default() += 1);
    let named: usize = named.values().map(|n| (*n).min(given.keep)).sum();
    for id in forward.program.results().iter().skip(1) {
        let width: u64 = forward.bound.shape(*id).expect("a shape")[1..].iter().product();
        let nans = |rank| held[&(rank, *id)].iter().filter(|x| x.is_nan()).count();
        let pads: usize = (0..forward.ranks).map(nans).sum();
        assert_eq!(pads, (rows - named) * width as usize, "{what}: rows of nobody");
    }
    let mut behind = Held::new();
    for rank in 0..forward.ranks {
        for (input, t) in gradient.inputs.iter().zip(backward.program.tensors()) {
            let of = |id: ValueId| held[&(rank, id)].clone();
            let values = match *input {
                Input::Gradient(_) => backward.part(t.id, rank, &given.dy),
                Input::Parameter(i) => of(forward.program.tensors()[i].id),
                Input::Saved(i) => of(forward.program.results()[i]),
                Input::Ones => {
                    let wide: u64 =
                        backward.bound.shape(t.id).expect("a shape")[1..].iter().product();
                    vec![1.0; backward.rows(t.id, rank).len() * wide as usize]
                }
                Input::Main(_) => unreachable!("none was asked for"),
            };
            behind.insert((rank, t.id), values);
        }
    }
    kernels[1].iter().for_each(|kernel| kernel.launch(what, &mut behind, seed));
    let wanted = given.wanted();
    let y = forward.program.results()[0];
    judge(&format!("{what}, y"), forward, (y, y), &held, (&wanted.y, H));
    for (parameter, source) in &gradient.gradients {
        let tensor = &forward.program.tensors()[*parameter];
        let (whole, width) = match tensor.name.as_str() {
            "x" => (&wanted.x, H),
            "gate" => (&wanted.gate, given.slots),
            "w1" => (&wanted.w1, H * 2 * given.columns),
            "w2" => (&wanted.w2, given.columns * H),
            "b1" => (&wanted.b1, 2 * given.columns),
            _ => (&wanted.b2, H),
        };
        let i = match *source {
            Source::Result(i) => i,
            Source::Rows(i) => {
                // Of each expert's rows, which are all alike, the first.
                for rank in 0..backward.ranks {
                    let all = behind.get_mut(&(rank, backward.program.results()[i]));
                    let all = all.expect("a result");
                    let expert = all.chunks(8 * width);
                    let alike = |m: &[f32]| m.chunks(width).all(|row| row == &m[..width]);
                    assert!(expert.clone().all(alike), "{what}, rank {rank}: rows differ");
                    *all = expert.flat_map(|m| &m[..width]).copied().collect();
                }
                i
            }
            _ => panic!("{what}: {source:?}"),
        };
        let of = (tensor.id, backward.program.results()[i]);
        let what = format!("{what}, d_{}", tensor.name);
        judge(&what, forward, of, &behind, (whole, width));
    }
}

/// Compares each rank's part of a value, of which it holds `found`: every element, and all together where there are many.
fn judge(
    what: &str,
    sized: &Sized<'_>,
    (id, found): (ValueId, ValueId),
    held: &Held,
    (whole, width): (&[Real], usize),
) {
    let (mut off, mut size, mut many) = (0.0, 0.0, 0);
    for rank in 0..sized.ranks {
        let rows = sized.rows(id, rank);
        let want = whole.get(rows.start * width..rows.end * width).unwrap_or_default();
        let got = &held[&(rank, found)];
        assert_eq!(got.len(), want.len(), "{what}, rank {rank}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let by = (f64::from(*got) - want.x).abs();
            // Six values on the way have 16 bits.
            let near = by <= want.size * 6.0 / 512.0;
            assert!(
                near,
                "{what}, rank {rank}, [{}, {}]: {got}, not {}",
                i / width,
                i % width,
                want.x
            );
            off += by * by;
            size += want.x * want.x;
            many += 1;
        }
    }
    // A few sums may all cancel: their own bounds judge them.
    assert!(
        many < 64 || off.sqrt() <= size.sqrt() / 100.0,
        "{what}: off by {:e} of {:e}",
        off.sqrt(),
        size.sqrt()
    );
}

fn bind(program: &Program, dims: &[(&str, usize)], what: &str) -> Bound {
    let known = dims.iter().filter(|(n, _)| program.symbol(n).is_some());
    let known = known.map(|(n, v)| (n.to_string(), *v as u64)).collect();
    program.bind(&known, &BTreeMap::new()).unwrap_or_else(|e| panic!("{what}: {e}"))
}
