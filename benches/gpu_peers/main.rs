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
    passes::Config,
    runtime::{
        DeviceTensor, InstanceOptions, RankTensors, World,
        bench::{Gate, median},
        jit::JitOptions,
    },
};
use peers::Peers;
use scenario::{Case, Res, Scenario, good};
use std::{collections::BTreeMap, ffi::c_void, time::Instant};

const SETS: usize = 3;
const ROUNDS: usize = 20;
const WARM: usize = 4;

/// M, K and the columns of each rank.
const SHAPES: &[[u64; 3]] = &[
    [4096, 4096, 1024],
    [8192, 8192, 2048],
    [16384, 16384, 4096],
    [8192, 8192, 2560],
    [8192, 8192, 14336],
    [2048, 8192, 2560],
    [8192, 8192, 8192],
];

fn main() -> Res<()> {
    let ranks = std::env::args().nth(1).and_then(|a| a.parse().ok());
    let world = match (1..=4)
        .rev()
        .filter(|n| ranks.is_none_or(|r: usize| r == *n))
        .find_map(|n| World::local(n).ok())
    {
        Some(world) => world,
        None => {
            println!("SKIPPED gpu_peers: no CUDA device");
            return Ok(());
        }
    };
    let n = world.size() as usize;
    let peers = Peers::new(n)?;
    let gate = Gate::new(&world, &JitOptions::default())?;
    println!(
        "{n} ranks, ms: M x K x N per rank | ours by communication CTAs | cuBLAS | NCCL | NCCL+cuBLAS | peer/ours | host us a launch"
    );
    for shape in SHAPES {
        row(&world, &peers, &gate, *shape)?;
    }
    Ok(())
}

fn row(world: &World, peers: &Peers, gate: &Gate, [m, k, cols]: [u64; 3]) -> Res<()> {
    let n = u64::from(world.size());
    let splits: &[u32] = if n > 1 { &[8, 12, 16, 24, 32] } else { &[0] };
    let mut ours = Vec::new();
    for comm in splits {
        let sms = if n > 1 {
            BTreeMap::from([("intra_comm".to_string(), *comm)])
        } else {
            BTreeMap::new()
        };
        let case = Case {
            pipeline: "gather(a) -> gemm(b)",
            shapes: vec![("a", vec![m, k]), ("b", vec![k, cols * n])],
            config: Config { sms, ..Config::default() },
        };
        ours.push(Scenario::new(
            &case,
            world,
            &InstanceOptions { poison: Some(0xFF), ..InstanceOptions::default() },
        )?);
    }
    // Three sets of tensors, shared by everybody; the scenarios' own are only for the check.
    let mut sets: Vec<Vec<Vec<DeviceTensor>>> = Vec::new();
    let mut full = Vec::new();
    for rank in world.local_ranks() {
        full.push(DeviceTensor::new(world, rank, DType::Bf16, &[m, k])?);
    }
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
    let streams: Vec<_> = gate.streams().iter().map(|s| s.as_ref()).collect();
    let raw: Vec<*mut c_void> = streams.iter().map(|s| s.as_raw()).collect();
    let dims = [m as i32, k as i32, cols as i32];
    let fail = |e: Box<dyn std::error::Error>| panic!("{e}");
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
        let at = ours.len();
        let product = |rank: usize, a: u64| {
            peers
                .gemm(
                    rank,
                    raw[rank],
                    a,
                    set[rank][1].as_arg().ptr(),
                    set[rank][2].as_arg().ptr(),
                    dims,
                )
                .unwrap_or_else(fail);
        };
        let gather = || {
            let from: Vec<_> = set.iter().map(|t| t[0].as_arg().ptr()).collect();
            let to: Vec<_> = full.iter().map(|t| t.as_arg().ptr()).collect();
            peers.gather(&raw, &from, &to, (m / n * k) as usize).unwrap_or_else(fail);
        };
        keep(
            at,
            gate.time_ms(|| {
                (0..n as usize).for_each(|r| product(r, full[r].as_arg().ptr()));
                Ok(())
            })?,
        );
        keep(
            at + 1,
            gate.time_ms(|| {
                gather();
                Ok(())
            })?,
        );
        keep(
            at + 2,
            gate.time_ms(|| {
                gather();
                (0..n as usize).for_each(|r| product(r, full[r].as_arg().ptr()));
                Ok(())
            })?,
        );
    }
    for s in &mut ours {
        for epoch in 1..=2 {
            let norm = s.step(epoch)?;
            if !good(&norm) {
                return Err(format!("{m} x {k} x {cols}: wrong result: {norm:?}").into());
            }
        }
    }
    let medians: Vec<_> = times.iter_mut().map(|t| median(t)).collect();
    let (us, them) = medians.split_at(ours.len());
    let best = us.iter().copied().fold(f32::MAX, f32::min);
    let list: Vec<_> = splits.iter().zip(us).map(|(c, t)| format!("{c}: {t:.4}")).collect();
    println!(
        "{m} x {k} x {cols} | {} | {:.4} | {:.4} | {:.4} | {:.3} | {:.1}",
        list.join(" "),
        them[0],
        them[1],
        them[2],
        if n > 1 { them[2] / best } else { them[0] / best },
        host / n as f64
    );
    Ok(())
}
