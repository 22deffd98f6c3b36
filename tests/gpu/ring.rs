//! Attention as pipelines are lowered: many launches under delays, captured, the same bits as undisturbed ones.

use crate::{
    at_most, nodes,
    rig::{alone, in_parallel},
    scenario::{Res, config_for},
    world_of,
};
use mk::{
    Program,
    abi::KernelSource,
    emit, passes,
    runtime::{
        InstanceOptions, World,
        jit::{self, Compiled, JitOptions},
        net::Net,
    },
    settings::Config,
    syntax::{Bound, Def, Op, ValueId},
};
use mk_harness::{Case, Dense, Held, Inputs, gpu::Session};
use std::{collections::BTreeMap, time::Duration};

/// What is attended to: a mask, how the sequence is shared, sizes `[B, S, H, G, D]`.
struct Attention {
    dtype: &'static str,
    causal: bool,
    placement: &'static str,
    sizes: [u64; 5],
}

const SMALL: Attention =
    Attention { dtype: "bf16", causal: true, placement: "zigzag", sizes: [1, 1024, 4, 2, 64] };
const SEED: u64 = 30;

impl Attention {
    fn text(&self) -> String {
        let Attention { dtype: t, placement: p, .. } = self;
        let mask = if self.causal { ", causal" } else { "" };
        let (q, kv) = (format!("{t}[B, S, H, D] @ {p}(1)"), format!("{t}[B, S, G, D] @ {p}(1)"));
        format!(
            "fn attend(q: {q}, k: {kv}, v: {kv}) {{ let o = ring(k, v) -> attention(q{mask}); (o, o -> lse) }}"
        )
    }

    fn dims(&self) -> BTreeMap<String, u64> {
        ["B", "S", "H", "G", "D"].map(String::from).into_iter().zip(self.sizes).collect()
    }

    /// Pipelines of the backward: statistics, gradients of queries, gradients of keys and values.
    fn backward(&self) -> [String; 3] {
        let Attention { dtype: t, placement: p, .. } = self;
        let mask = if self.causal { ", causal" } else { "" };
        let (q, kv) = (format!("{t}[B, S, H, D] @ {p}(1)"), format!("{t}[B, S, G, D] @ {p}(1)"));
        let (stats, logs) = (format!("f32[B, H, S, 4] @ {p}(2)"), format!("f32[B, H, S] @ {p}(2)"));
        let all = format!("q: {q}, do: {q}, stats: {stats}, k: {kv}, v: {kv}");
        [
            format!(
                "fn statistics(o: {q}, do: {q}, logs: {logs}) {{ o -> attention_stats(do, logs) }}"
            ),
            format!("fn dq({all}) {{ ring(k, v) -> attention_dq(q, do, stats{mask}) }}"),
            format!(
                "fn dkv({all}) {{ let dk = ring(q, do, stats) -> attention_dk(k, v{mask}); (dk, dk -> attention_dv) }}"
            ),
        ]
    }

    /// Its kernel for a world, with fewer CTAs than tiles.
    fn prepare(&self, world: &World, text: &str) -> Res<Prepared> {
        self.prepare_with(world, text, &Config::default())
    }

    /// The same on other nodes and networks.
    fn prepare_with(&self, world: &World, text: &str, base: &Config) -> Res<Prepared> {
        let program = Program::parse(text)?;
        // Statistics have no keys.
        let known = |(name, _): &(String, u64)| program.symbol(name).is_some();
        let dims = self.dims().into_iter().filter(known).collect();
        let bound = program.bind(&dims, &BTreeMap::new())?;
        let rings = world.size() > 1 && text.contains("ring(");
        let few =
            Config { compute_sms: Some(5), intra_comm_sms: rings.then_some(2), ..base.clone() };
        let (plan, _proof) = passes::compile(&program, &bound, &config_for(world, &few))?;
        let source = emit::emit(&plan)?;
        let compiled = jit::compile(&source, &JitOptions::default())?;
        Ok(Prepared { program, bound, source, compiled })
    }
}

/// A kernel and its pipeline.
struct Prepared {
    program: Program,
    bound: Bound,
    source: KernelSource,
    compiled: Compiled,
}

impl Prepared {
    /// Launches with fresh inputs, each eager and undisturbed, and captured with delays; no error is greater than `most`.
    fn run(&self, world: &World, launches: u64, most: f64, net: Option<&Net>) -> Res<()> {
        let Prepared { program, bound, source, compiled } = self;
        let ranks = world.size() as usize;
        let case = Case { program, bound, ranks };
        let limit = Duration::from_secs(10);
        let quiet = InstanceOptions {
            poison: Some(0xFF),
            wait_limit: limit,
            entry_limit: limit,
            net: net.cloned(),
            ..InstanceOptions::default()
        };
        let delays = InstanceOptions {
            chaos_seed: 30,
            chaos_max: Duration::from_micros(50),
            ..quiet.clone()
        };
        let mut quiet = Session::bind(world, case, source, compiled, &quiet, SEED)?;
        let mut delayed = Session::bind(world, case, source, compiled, &delays, SEED)?;
        let mut worst = (0.0_f64, 0.0_f64);
        for launch in 1..=launches {
            for session in [&mut quiet, &mut delayed] {
                session.fill(launch)?;
            }
            if launch == 2 {
                delayed.capture()?;
            }
            quiet.launch()?;
            delayed.launch()?;
            for (rank, n) in delayed.norms()?.iter().enumerate() {
                if n.nonfinite > 0 || n.global > most || n.worst_tile > most {
                    return Err(format!("launch {launch}, rank {rank}: {n:?}").into());
                }
                worst = (worst.0.max(n.global), worst.1.max(n.worst_tile));
            }
            // Reading all of it back takes longer than the launches.
            if launch > 10 && launch % 10 > 0 {
                continue;
            }
            let (a, b) = (results(&quiet)?, results(&delayed)?);
            if let Some((x, _)) = a.iter().zip(&b).find(|(x, y)| !same_bits(x, y)) {
                let (name, rank) = (&x.name, x.rank);
                return Err(format!("launch {launch}, rank {rank}: runs differ in {name}").into());
            }
            if launch == 1 || launch == launches {
                logarithms(case, launch, &b)?;
            }
        }
        let (name, (all, tile)) = (program.name(), worst);
        println!("ok {name}, {ranks} ranks, {launches} launches: {all:.2e}, {tile:.2e} in a tile");
        Ok(())
    }
}

impl Prepared {
    /// Three launches with delays at each of some lengths; no error is greater than `most`.
    fn lengths(&self, world: &World, lengths: &[u64], most: f64) -> Res<()> {
        let Prepared { program, bound, source, compiled } = self;
        let ranks = world.size() as usize;
        let limit = Duration::from_secs(10);
        let options = InstanceOptions {
            poison: Some(0xFF),
            wait_limit: limit,
            entry_limit: limit,
            chaos_seed: 30,
            chaos_max: Duration::from_micros(50),
            ..InstanceOptions::default()
        };
        let at = |s: &u64| program.rebind(bound, &BTreeMap::from([("S".to_string(), *s)]));
        let bounds = lengths.iter().map(at).collect::<Result<Vec<_>, _>>()?;
        let case = |bound| Case { program, bound, ranks };
        let mut session = Session::bind(world, case(&bounds[0]), source, compiled, &options, SEED)?;
        let (mut launch, mut worst) = (0, (0.0_f64, 0.0_f64));
        for (bound, length) in bounds.iter().zip(lengths) {
            session.rebind(bound)?;
            for _ in 0..3 {
                launch += 1;
                session.fill(launch)?;
                session.launch()?;
                for (rank, n) in session.norms()?.iter().enumerate() {
                    if n.nonfinite > 0 || n.global > most || n.worst_tile > most {
                        return Err(format!("{length} rows, rank {rank}: {n:?}").into());
                    }
                    worst = (worst.0.max(n.global), worst.1.max(n.worst_tile));
                }
            }
            logarithms(case(bound), launch, &results(&session)?)?;
        }
        let (name, n, (all, tile)) = (program.name(), lengths.len(), worst);
        println!("ok {name}, {ranks} ranks, {n} lengths: {all:.2e}, {tile:.2e} in a tile");
        Ok(())
    }
}

/// All logarithms against f64, where they are results.
fn logarithms(case: Case<'_>, launch: u64, results: &[Held]) -> Res<()> {
    let program = case.program;
    let is = |id: &&ValueId| matches!(program.def(**id), Some(Def::Node(n)) if n.op == Op::Lse);
    let Some(lse) = program.results().iter().find(is) else { return Ok(()) };
    let expected = Dense::new(Inputs::new(case, SEED), launch).expected(*lse)?;
    let held = results.iter().filter(|h| h.shape.len() == 3);
    for (held, expected) in held.zip(&expected) {
        let apart = |(x, want): (&f32, &f64)| (f64::from(*x) - want).abs();
        let apart = held.values.iter().zip(&expected.matrix.data).map(apart);
        let most = apart.fold(0.0, |a: f64, b| if b.is_nan() { f64::INFINITY } else { a.max(b) });
        if most >= 1e-4 || held.values.len() != expected.matrix.data.len() {
            return Err(format!("launch {launch}, rank {}: lse {most} off", held.rank).into());
        }
    }
    Ok(())
}

fn results(session: &Session<'_>) -> Res<Vec<Held>> {
    let held = session.held().filter(|held| !matches!(held, Ok(held) if held.input));
    Ok(held.collect::<Result<_, _>>()?)
}

fn same_bits(a: &Held, b: &Held) -> bool {
    let bits = |x: &f32| x.to_bits();
    a.values.len() == b.values.len() && a.values.iter().map(bits).eq(b.values.iter().map(bits))
}

/// Pipelines of each case, compiled side by side.
fn check(
    test: &str,
    cases: &[(usize, u64, Attention)],
    pipelines: impl Fn(&Attention) -> Vec<String>,
    most: f64,
) -> Res<()> {
    let _alone = alone();
    let mut all = Vec::new();
    for (ranks, launches, a) in cases {
        let Some(world) = world_of(test, *ranks) else { return Ok(()) };
        let launches = at_most(*launches);
        all.extend(pipelines(a).into_iter().map(|text| (world.clone(), launches, a, text)));
    }
    let prepared = in_parallel(&all, |(world, _, a, text)| a.prepare(world, text));
    for ((world, launches, _, text), prepared) in all.iter().zip(prepared) {
        let run = prepared.and_then(|p| p.run(world, *launches, most, None));
        run.map_err(|e| format!("{} ranks, {text}: {e}", world.size()))?;
    }
    Ok(())
}

#[test]
fn lowered_attention_stays_right_under_delays() -> Res<()> {
    let full =
        Attention { dtype: "f16", causal: false, placement: "shard", sizes: [1, 1000, 4, 1, 128] };
    let cases = [
        (1, 20, Attention { sizes: [2, 257, 4, 4, 128], placement: "shard", ..SMALL }),
        (2, 200, SMALL),
        (3, 200, Attention { sizes: [1, 1000, 2, 2, 128], placement: "shard", ..SMALL }),
        (4, 200, SMALL),
        (4, 20, full),
        (8, 200, Attention { sizes: [1, 1024, 2, 1, 128], ..SMALL }),
    ];
    let test = "lowered_attention_stays_right_under_delays";
    check(test, &cases, |a| vec![a.text()], 4e-3)
}

#[test]
fn lowered_gradients_stay_right_under_delays() -> Res<()> {
    let full = Attention { causal: false, placement: "shard", sizes: [1, 1000, 4, 1, 64], ..SMALL };
    let odd = Attention { sizes: [1, 1000, 2, 1, 128], dtype: "f16", placement: "shard", ..SMALL };
    let cases = [
        (1, 20, Attention { sizes: [2, 257, 4, 2, 128], placement: "shard", ..SMALL }),
        (2, 200, SMALL),
        (3, 200, odd),
        (4, 200, Attention { sizes: [1, 1024, 2, 1, 128], ..SMALL }),
        (4, 20, full),
        (8, 200, Attention { sizes: [1, 1024, 2, 2, 64], ..SMALL }),
    ];
    let test = "lowered_gradients_stay_right_under_delays";
    check(test, &cases, |a| a.backward().to_vec(), 1e-2)
}

/// Rings over nodes that share a GPU, in order and unordered, on a network on which writes overtake each other.
#[test]
fn rings_over_nodes() -> Res<()> {
    let test = "rings_over_nodes";
    let full =
        Attention { causal: false, placement: "shard", sizes: [1, 1000, 2, 1, 128], ..SMALL };
    let launches = at_most(100);
    let _alone = alone();
    for (ranks, a) in [(2, &full), (4, &SMALL)] {
        let Some(world) = nodes::world(test, 2, ranks) else { return Ok(()) };
        let [_, dq, dkv] = a.backward();
        let mut all = Vec::new();
        for (net, ordering) in nodes::ORDERS {
            for (text, most) in [(a.text(), 4e-3), (dq.clone(), 1e-2), (dkv.clone(), 1e-2)] {
                all.push((Config { nodes: 2, net, ..Config::default() }, ordering, text, most));
            }
        }
        let prepared =
            in_parallel(&all, |(config, _, text, _)| a.prepare_with(&world, text, config));
        for (i, ((_, ordering, text, most), prepared)) in (1..).zip(all.iter().zip(prepared)) {
            let net = Net::loopback(&world, *ordering, &nodes::shuffled(i))?;
            let run = prepared.and_then(|p| p.run(&world, launches, *most, Some(&net)));
            run.map_err(|e| format!("{ranks} ranks, {ordering:?}, {text}: {e}"))?;
        }
    }
    Ok(())
}

/// Launches of one kernel with other lengths of the sequence, up to its bound: some that leave ranks without rows.
#[test]
fn lengths_that_come_with_each_launch() -> Res<()> {
    const ALL: &[u64] = &[1000, 1, 999, 3, 128, 513, 64, 257, 2, 640, 1000];
    // Gradients of few queries are 0, or next to it.
    const LONG: &[u64] = &[1000, 999, 128, 513, 257, 640, 1000];
    let test = "lengths_that_come_with_each_launch";
    let small = Attention { sizes: [2, 1000, 4, 2, 64], ..SMALL };
    let cases = [
        (1, Attention { placement: "shard", ..small }),
        (2, Attention { sizes: [1, 1000, 4, 2, 128], ..SMALL }),
        (4, Attention { causal: false, placement: "shard", sizes: [1, 1000, 4, 1, 128], ..SMALL }),
        (4, small),
    ];
    let _alone = alone();
    let mut all = Vec::new();
    for (ranks, a) in &cases {
        let Some(world) = world_of(test, *ranks) else { return Ok(()) };
        let [_, dq, dkv] = a.backward();
        for (text, lengths, most) in [(a.text(), ALL, 4e-3), (dq, LONG, 1e-2), (dkv, LONG, 1e-2)] {
            let bound = format!("<S: dyn <= {}>(", a.sizes[1]);
            all.push((world.clone(), a, text.replacen('(', &bound, 1), lengths, most));
        }
    }
    let prepared = in_parallel(&all, |(world, a, text, ..)| a.prepare(world, text));
    for ((world, _, text, lengths, most), prepared) in all.iter().zip(prepared) {
        let run = prepared.and_then(|p| p.lengths(world, lengths, *most));
        run.map_err(|e| format!("{} ranks, {text}: {e}", world.size()))?;
    }
    Ok(())
}
