//! Ours, cuBLAS alone, NCCL alone and NCCL + cuBLAS in one run, interleaved: `gpu_peers [ranks]`.
//!
//! Inputs are random and rotate over three sets; L2 is flushed and all ranks are released together before each
//! measurement; the time is the slowest rank's, and the figure the median of 20. Every result of ours is compared with
//! an fp32 reference outside the timed part.

mod peers;
#[path = "../../tests/gpu/scenario.rs"]
#[allow(dead_code)]
mod scenario;

use mk::{
    abi::DType,
    runtime::{
        DeviceTensor, InstanceOptions, RankTensors, World,
        bench::{Gate, median},
        jit::JitOptions,
    },
    settings::Config,
};
use peers::Peers;
use scenario::{Case, Res, Scenario, good};
use std::{ffi::c_void, time::Instant};

const SETS: usize = 3;
const ROUNDS: usize = 20;
const WARM: usize = 4;

/// What is compared: a pipeline of ours, and a product with a collective before or after it.
#[derive(Clone, Copy, PartialEq)]
enum Op {
    Gather,
    Scatter,
    All,
}

/// M, K and N of each rank's product.
const SHAPES: &[(Op, &[[u64; 3]])] = &[
    (
        Op::Gather,
        &[
            [4096, 4096, 1024],
            [8192, 8192, 2048],
            [16384, 16384, 4096],
            [8192, 8192, 2560],
            [8192, 8192, 14336],
            [2048, 8192, 2560],
            [8192, 8192, 8192],
        ],
    ),
    (
        Op::Scatter,
        &[
            [4096, 1024, 4096],
            [8192, 2048, 8192],
            [16384, 4096, 16384],
            [8192, 7168, 8192],
            [2048, 7168, 8192],
        ],
    ),
    (
        Op::All,
        &[
            [4096, 1024, 4096],
            [8192, 2048, 8192],
            [16384, 4096, 16384],
            [512, 7168, 8192],
            [64, 7168, 8192],
        ],
    ),
];

fn main() -> Res<()> {
    let ranks = std::env::args().nth(1).and_then(|a| a.parse().ok());
    let wanted = |n: &usize| ranks.is_none_or(|r: usize| r == *n);
    let Some(world) = (1..=4).rev().filter(wanted).find_map(|n| World::local(n).ok()) else {
        println!("SKIPPED gpu_peers: no CUDA device");
        return Ok(());
    };
    let n = world.size();
    let peers = Peers::new(n as usize)?;
    let gate = Gate::new(&world, &JitOptions::default())?;
    for (op, shapes) in SHAPES {
        let (name, collective) = match op {
            Op::Gather => ("gather -> gemm", "all-gather"),
            Op::Scatter => ("gemm -> reduce_scatter", "reduce-scatter"),
            Op::All => ("gemm -> all_reduce", "all-reduce"),
        };
        println!("{name}, {n} ranks, ms");
        println!(
            "| M x K x N per rank | ours, by communication CTAs / KiB a chunk | cuBLAS | NCCL {collective} | both | both / ours | host us |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for shape in *shapes {
            if let Err(e) = row(&world, &peers, &gate, *op, *shape) {
                println!("| {shape:?} | failed: {e} |");
            }
        }
    }
    Ok(())
}

/// Case of ours for a product of `[m, k, cols]` on each rank.
fn case(op: Op, [m, k, cols]: [u64; 3], n: u64, (comm, chunk_kib): (u32, u32)) -> Case {
    let (pipeline, shapes) = match op {
        Op::Gather => ("gather(a) -> gemm(b)", vec![("a", vec![m, k]), ("b", vec![k, cols * n])]),
        Op::Scatter => {
            ("gemm(a, b) -> reduce_scatter", vec![("a", vec![m, k * n]), ("b", vec![k * n, cols])])
        }
        Op::All => {
            ("gemm(a, b) -> all_reduce", vec![("a", vec![m, k * n]), ("b", vec![k * n, cols])])
        }
    };
    let alone = n == 1 && op == Op::Gather;
    let intra_comm_sms = if alone { None } else { Some(comm) };
    let config = Config { intra_comm_sms, chunk_bytes: chunk_kib << 10, ..Config::default() };
    Case { pipeline, shapes, config }
}

fn row(world: &World, peers: &Peers, gate: &Gate, op: Op, shape: [u64; 3]) -> Res<()> {
    let [m, k, cols] = shape;
    let n = u64::from(world.size());
    // Communication CTAs, and KiB of a chunk of a gather.
    let splits: &[(u32, u32)] = match (n, op) {
        (1, _) => &[(1, 128)],
        (_, Op::Gather) => {
            &[(8, 128), (8, 512), (16, 128), (16, 256), (16, 512), (24, 128), (24, 256)]
        }
        _ => &[(8, 128), (16, 128), (24, 128), (32, 128)],
    };
    let options = InstanceOptions { poison: Some(0xFF), ..InstanceOptions::default() };
    let mut ours = Vec::new();
    for split in splits {
        ours.push(Scenario::new(&case(op, shape, n, *split), world, &options)?);
    }
    // Sets of tensors that everybody shares; the scenarios' own are for the check only.
    let mut sets: Vec<Vec<Vec<DeviceTensor>>> = Vec::new();
    for set in 0..SETS {
        ours[0].refill(1000 + set as u64)?;
        let mut tensors = Vec::new();
        for (rank, from) in ours[0].tensors.iter().enumerate() {
            let mut list = Vec::new();
            for t in from {
                let copy = DeviceTensor::new(world, rank as u32, t.dtype(), t.shape())?;
                copy.copy_from(t)?;
                list.push(copy);
            }
            tensors.push(list);
        }
        sets.push(tensors);
    }
    // What lies between the peers' product and their collective.
    let between = if op == Op::Gather { [m, k] } else { [m, cols] };
    let middle = world
        .local_ranks()
        .map(|rank| DeviceTensor::new(world, rank, DType::Bf16, &between))
        .collect::<Result<Vec<_>, _>>()?;
    let streams: Vec<_> = gate.streams().iter().map(|s| s.as_ref()).collect();
    let raw: Vec<*mut c_void> = streams.iter().map(|s| s.as_raw()).collect();
    let dims = [m as i32, k as i32, cols as i32];
    let mut times = vec![Vec::new(); ours.len() + 3];
    let mut host = f64::MAX;
    for round in 0..WARM + ROUNDS {
        let set = &sets[round % SETS];
        let mut keep = |i: usize, t: f32| {
            if round >= WARM {
                times[i].push(t);
            }
        };
        let args: Vec<RankTensors> = set.iter().map(RankTensors::new).collect();
        for (i, s) in ours.iter_mut().enumerate() {
            let t = gate.time_ms(|| {
                let begin = Instant::now();
                s.instance.launch(&streams, &args)?;
                host = host.min(begin.elapsed().as_secs_f64() * 1e6);
                Ok(())
            })?;
            s.instance.check()?;
            keep(i, t);
        }
        let at = |t: &DeviceTensor| t.as_arg().ptr();
        let mut failed = None;
        let products = || {
            (0..n as usize).try_for_each(|r| {
                let (a, c) = if op == Op::Gather {
                    (at(&middle[r]), at(&set[r][2]))
                } else {
                    (at(&set[r][0]), at(&middle[r]))
                };
                peers.gemm(r, raw[r], a, at(&set[r][1]), c, dims)
            })
        };
        let collective = || {
            let (mid, first, last): (Vec<_>, Vec<_>, Vec<_>) = (
                middle.iter().map(at).collect(),
                set.iter().map(|t| at(&t[0])).collect(),
                set.iter().map(|t| at(&t[2])).collect(),
            );
            match op {
                Op::Gather => peers.gather(&raw, &first, &mid, (m / n * k) as usize),
                Op::Scatter => peers.reduce(&raw, &mid, &last, (m / n * cols) as usize, false),
                Op::All => peers.reduce(&raw, &mid, &last, (m * cols) as usize, true),
            }
        };
        let both = || {
            if op == Op::Gather {
                collective().and_then(|()| products())
            } else {
                products().and_then(|()| collective())
            }
        };
        let jobs: [&dyn Fn() -> Res<()>; 3] = [&products, &collective, &both];
        for (i, job) in jobs.into_iter().enumerate() {
            let t = gate.time_ms(|| {
                failed = failed.take().or(job().err());
                Ok(())
            })?;
            keep(ours.len() + i, t);
        }
        if let Some(e) = failed {
            return Err(e);
        }
    }
    for s in &mut ours {
        for epoch in 1..=2 {
            let norm = s.step(epoch)?;
            if !good(&norm) {
                return Err(format!("wrong result: {norm:?}").into());
            }
        }
    }
    let medians: Vec<_> = times.iter_mut().map(|t| median(t)).collect();
    let (us, them) = medians.split_at(ours.len());
    let best = us.iter().copied().fold(f32::MAX, f32::min);
    let list: Vec<_> =
        splits.iter().zip(us).map(|((c, kib), t)| format!("{c}/{kib}: {t:.4}")).collect();
    let (list, host) = (list.join(" "), host / n as f64);
    println!(
        "| {m} x {k} x {cols} | {list} | {:.4} | {:.4} | {:.4} | {:.3} | {host:.1} |",
        them[0],
        them[1],
        them[2],
        them[2] / best
    );
    Ok(())
}
