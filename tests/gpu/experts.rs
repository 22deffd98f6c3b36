//! Tokens to their experts and back: routings that change from launch to launch, and those that no launch can have.

use crate::{
    nodes,
    rig::{alone, in_parallel},
    scenario::config_for,
    shared_world,
};
use mk::{
    Bound, Program,
    abi::{DType, KernelSource, TensorDirection},
    emit, passes,
    runtime::{
        DeviceTensor, Instance, InstanceOptions, RankTensors, Stream, World,
        jit::{self, Compiled, JitOptions},
        net::Net,
    },
    settings::{Config, Returns},
};
use mk_harness::{Case, Routing, gpu::Session};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

pub const LAYER: &str = "fn layer(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, F] @ shard(0), w2: bf16[E, F, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";
const DISPATCH: &str = "fn dispatched(x: bf16[T, H] @ shard(0), ids: i64[T, K] @ shard(0), w: bf16[E, H, F] @ shard(0)) {
    dispatch(x, ids, capacity = R) -> grouped_gemm(w)
}";
/// What a layer's backward begins with, and gradients of its weights.
const WEIGHTED: &str = "fn weighted(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0),
    gate: f32[T, K] @ shard(0), w2: bf16[E, F, H] @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    let rows = dispatch(dy, ids, gate, capacity = R);
    (rows -> grouped_gemm(w2.t) -> swiglu_grad(h), rows)
}";
pub const WEIGHTS: &str = "fn weights(a: bf16[R, F] @ shard(0), ids: i64[T, K] @ shard(0),
    dy: bf16[T, H] @ shard(0), w2: bf16[E, F, H] @ shard(0)) {
    ragged(a, ids) -> grouped_gemm(w2) -> combine_grad(dy)
}";

/// The same in one kernel, with weights behind the activation.
pub const WEIGHED: &str = "fn weighed(dy: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0),
    gate: f32[T, K] @ shard(0), w2: bf16[E, F, H] @ shard(0), h: bf16[R, 2, F] @ shard(0)) {
    let rows = dispatch(dy, ids, capacity = R);
    let u = rows -> grouped_gemm(w2.t);
    let a = h -> swiglu;
    (u -> weigh(gate) -> swiglu_grad(h), rows, a -> ragged(ids) -> weigh(gate), u -> weigh_grad(a))
}";

pub struct Kernel {
    pub program: Program,
    pub bound: Bound,
    pub source: KernelSource,
    pub compiled: Compiled,
}

/// Of so many tokens of the world, slots, experts and blocks of a rank.
fn kernel(text: &str, world: &World, sizes: [u64; 4]) -> Kernel {
    kernel_on(text, world, sizes, 0)
}

/// That leaves so many SMs free.
pub fn kernel_on(text: &str, world: &World, sizes: [u64; 4], free: u32) -> Kernel {
    let mut config = config_for(world, &Config::default());
    config.reserved_sms += free;
    kernel_with(text, world, sizes, &config)
}

fn kernel_with(
    text: &str,
    world: &World,
    [tokens, slots, experts, blocks]: [u64; 4],
    config: &Config,
) -> Kernel {
    let program = Program::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let rows = blocks * u64::from(world.size()) * 128;
    let dims = [("T", tokens), ("K", slots), ("E", experts), ("R", rows), ("H", 136), ("F", 72)];
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    let (plan, _) = passes::compile(&program, &bound, config).unwrap_or_else(|e| panic!("{e}"));
    let source = emit::emit(&plan).unwrap_or_else(|e| panic!("{e}"));
    let compiled = jit::compile(&source, &JitOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    Kernel { program, bound, source, compiled }
}

pub fn options(chaos: u64) -> InstanceOptions {
    InstanceOptions {
        poison: Some(0xFF),
        wait_limit: Duration::from_secs(10),
        chaos_seed: u32::from(chaos > 0),
        chaos_max: Duration::from_micros(chaos),
        ..InstanceOptions::default()
    }
}

pub const FORMS: [Routing; 5] =
    [Routing::Uniform, Routing::Skew(8), Routing::One, Routing::Empty, Routing::Random];

/// Launches of one kernel, each with another routing, the last ones captured.
fn right(k: &Kernel, world: &World, options: &InstanceOptions) {
    let case = Case { program: &k.program, bound: &k.bound, ranks: world.size() as usize };
    let mut session = Session::bind(world, case, &k.source, &k.compiled, options, 5)
        .unwrap_or_else(|e| panic!("{e}"));
    let tolerance = session.tolerance().unwrap_or_else(|e| panic!("{e}"));
    for (launch, form) in (1..).zip(FORMS.into_iter().chain(FORMS)) {
        session.route(form);
        let what = format!("{} on {} ranks, launch {launch}, {form}", k.program.name(), case.ranks);
        let mut step = || {
            session.fill(launch)?;
            if launch == 6 {
                session.capture()?;
            }
            session.launch()?;
            Ok::<_, mk_harness::HarnessError>((session.norms()?, session.sampled_rows(launch, 3)?))
        };
        let (norms, rows) = step().unwrap_or_else(|e| panic!("{what}: {e}"));
        for norms in norms {
            assert!(tolerance.accepts(&norms), "{what}: {}", tolerance.beside(&norms));
        }
        for rows in rows {
            assert!(rows.passes(), "{what}: {rows:?}");
        }
    }
}

#[test]
fn tokens_go_to_experts_and_back() {
    let _gpus = alone();
    // Ranks have unequally many tokens, and the last chunk of a rank is short.
    let worlds = [(1, 2, 8), (1, 8, 64), (2, 1, 6), (2, 8, 16), (4, 2, 8), (3, 3, 9)];
    let mut cases = Vec::new();
    for (ranks, slots, experts) in worlds {
        let world = shared_world("tokens_go_to_experts_and_back", ranks);
        let Some(world) = world else { return };
        let (n, own) = (ranks as u64, experts / ranks as u64);
        let tokens = 290 * n + 1;
        let blocks = tokens * slots.min(own) / 128 + own + 1;
        let sizes = [tokens, slots, experts, blocks];
        cases.push((LAYER, world.clone(), sizes, Returns::Rows));
        if ranks < 3 {
            cases.push((DISPATCH, world.clone(), sizes, Returns::Rows));
        }
        for text in [WEIGHTED, WEIGHTS, WEIGHED] {
            cases.push((text, world.clone(), sizes, Returns::Rows));
        }
        if ranks > 1 {
            for text in [LAYER, WEIGHTS] {
                cases.push((text, world.clone(), sizes, Returns::Sums));
            }
        }
    }
    let kernels = in_parallel(&cases, |(text, world, sizes, combine)| {
        let config = config_for(world, &Config { combine: *combine, ..Config::default() });
        kernel_with(text, world, *sizes, &config)
    });
    for ((_, world, _, _), k) in cases.iter().zip(&kernels) {
        right(k, world, &options(if world.size() > 2 { 20 } else { 0 }));
    }
}

/// Other ids on rank 0, or, without words, on all; and what is said of them.
type Change = (&'static str, fn(&mut [i64]));
const CHANGES: [Change; 5] = [
    ("token 7 goes to expert 4, and there are 4", |ids| ids[15] = 4),
    ("token 3 goes to expert -2", |ids| ids[6] = -2),
    ("token 9 goes to expert 4294967299, and there are 4", |ids| ids[19] += 1 << 32),
    ("token 299 goes to expert 1 twice", |ids| ids[598..600].fill(1)),
    ("", |ids| ids.chunks_mut(2).for_each(|two| two.copy_from_slice(&[0, 1]))),
];

#[test]
fn routings_that_no_launch_can_have() {
    let _gpus = alone();
    let Some(world) = shared_world("routings_that_no_launch_can_have", 2) else { return };
    let k = kernel(&LAYER.replace("i32", "i64"), &world, [600, 2, 4, 6]);
    refused(&k, &world, || options(0));
}

/// Nodes that share a GPU, on a network on which writes overtake each other; what one node is given wrong ends the
/// launch on both.
#[test]
fn experts_over_nodes() {
    let _gpus = alone();
    for ranks in [2, 4] {
        let Some(world) = nodes::world("experts_over_nodes", 2, ranks) else { return };
        let (tokens, own) = (290 * u64::from(ranks) + 1, 8 / u64::from(ranks));
        let sizes = [tokens, 2, 8, tokens * own.min(2) / 128 + own + 1];
        let wide = LAYER.replace("i32", "i64");
        for (seed, (net, ordering)) in (1..).zip(nodes::ORDERS) {
            let config = config_for(&world, &Config { nodes: 2, net, ..Config::default() });
            let mut cases = [LAYER, WEIGHTED, WEIGHTS, WEIGHED].map(|text| (text, sizes)).to_vec();
            let right_ones = cases.len();
            if ranks == 2 {
                cases.push((wide.as_str(), [600, 2, 4, 6]));
            }
            let kernels =
                in_parallel(&cases, |(text, sizes)| kernel_with(text, &world, *sizes, &config));
            let over = || {
                let net = Net::loopback(&world, ordering, &nodes::shuffled(seed));
                let net = net.unwrap_or_else(|e| panic!("{e}"));
                InstanceOptions { net: Some(net), ..options(20) }
            };
            for k in &kernels[..right_ones] {
                right(k, &world, &over());
            }
            for k in &kernels[right_ones..] {
                refused(k, &world, over);
            }
        }
    }
}

/// The launch ends with what is wrong, on every rank, and nothing lies beside the result.
fn refused(k: &Kernel, world: &World, options: impl Fn() -> InstanceOptions) {
    for (text, change) in CHANGES {
        let instance = Instance::bind(world, &k.source, &k.compiled, &options());
        let mut instance = instance.unwrap_or_else(|e| panic!("{e}"));
        let streams = Stream::per_rank(world).unwrap_or_else(|e| panic!("{e}"));
        let mut tensors: Vec<Vec<DeviceTensor>> = Vec::new();
        for rank in world.local_ranks() {
            let shapes = &k.source.ranks[rank as usize].tensor_shapes;
            let mut all = Vec::new();
            for (arg, shape) in k.source.tensors.iter().zip(shapes) {
                let t = DeviceTensor::zeros(world, rank, arg.dtype, shape);
                let t = t.unwrap_or_else(|e| panic!("{e}"));
                if arg.dtype == DType::I64 {
                    // By turns, so that experts have equally many.
                    let n = t.elements() as usize;
                    let mut ids: Vec<i64> = (0..n).map(|i| (i % 4) as i64).collect();
                    if rank == 0 || text.is_empty() {
                        change(&mut ids);
                    }
                    t.upload_integers(&ids).unwrap_or_else(|e| panic!("{e}"));
                }
                if arg.direction == TensorDirection::Out {
                    t.poison().unwrap_or_else(|e| panic!("{e}"));
                }
                all.push(t);
            }
            tensors.push(all);
        }
        let args: Vec<RankTensors> = tensors.iter().map(RankTensors::new).collect();
        let refs: Vec<_> = streams.iter().map(Stream::as_ref).collect();
        let begin = Instant::now();
        instance.launch(&refs, &args).unwrap_or_else(|e| panic!("{e}"));
        let said = instance.synchronize().expect_err("no launch can have it").to_string();
        let wanted = if text.is_empty() { "blocks" } else { text };
        assert!(said.contains(wanted), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}
