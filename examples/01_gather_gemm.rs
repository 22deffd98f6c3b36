//! A pipeline that the macro checks, from source to numbers: `cargo run --example 01_gather_gemm`.
//!
//! Runs on as many GPUs as there are ranks; with fewer, all ranks run on the CPU executor.

use mk::{
    Program,
    passes::{self},
    plan::Plan,
    runtime::{
        InstanceOptions, World,
        jit::{self, JitOptions},
    },
    settings::Config,
};
use mk_harness::{Case, CpuOptions, gpu::Session};
use std::{collections::BTreeMap, error::Error};

mk::pipeline! {
    /// Column-parallel linear layer: every rank gathers the rows of `x` and multiplies them with its columns of `w`.
    pub fn linear(x: bf16[M, K] @ shard(0), w: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(1) {
        gather(x) -> gemm(w)
    }
}

const RANKS: u32 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    // The macro has checked types and placements. Numbers for the symbols make it a case.
    let program: Program = linear();
    let dims = [("M", 512), ("K", 256), ("N", 512)].map(|(name, n)| (name.to_string(), n));
    let bound = program.bind(&BTreeMap::from(dims), &BTreeMap::new())?;
    let case = Case { program: &program, bound: &bound, ranks: RANKS as usize };

    // One plan for all ranks, and the proof that it has no race, no deadlock and no stale signal.
    let config = Config { ranks: RANKS, ..Config::default() };
    let (plan, proof) = passes::compile(&program, &bound, &config)?;
    println!("{proof}");

    let right = match World::local(RANKS as usize) {
        Ok(world) => {
            println!("on {RANKS} GPUs");
            on_gpus(&world, case, &plan)?
        }
        Err(error) if error.is_no_device() => {
            println!("on the CPU executor: {error}");
            on_cpu(case, &plan)?
        }
        Err(error) => return Err(error.into()),
    };

    if right { Ok(()) } else { Err("the result is wrong".into()) }
}

/// Three launches on the CPU executor, each with other inputs. Every element is judged.
fn on_cpu(case: Case<'_>, plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let run = mk_harness::run_on_cpu(case, plan, &CpuOptions::default())?;
    for (launch, ranks) in (1..).zip(&run.judged) {
        for (rank, judged) in ranks.iter().enumerate() {
            println!("launch {launch}, rank {rank}: {judged}");
        }
    }
    Ok(run.judged.iter().flatten().all(|judged| judged.passes()))
}

/// Three launches of the emitted kernel, each with other inputs.
fn on_gpus(world: &World, case: Case<'_>, plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let kernel = mk::emit::emit(plan)?;
    let compiled = jit::compile(&kernel, &JitOptions::default())?;
    let options = InstanceOptions::default();
    let mut session = Session::bind(world, case, &kernel, &compiled, &options, 0)?;
    let tolerance = session.tolerance()?;
    let mut right = true;
    for launch in 1..=3 {
        session.fill(launch)?;
        session.launch()?;
        for (rank, error) in session.norms()?.iter().enumerate() {
            println!("launch {launch}, rank {rank}: relative error {:.2e}", error.global);
            right &= tolerance.accepts(error);
        }
    }
    Ok(right)
}
