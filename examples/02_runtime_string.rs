//! A pipeline from a string at run time, and the kernel that it becomes: `cargo run --example 02_runtime_string`.
//!
//! Needs no GPU. With NVRTC (`cargo xtask setup` gets it) the kernel is compiled, too.

use mk::{
    Program,
    passes::{self},
    runtime::{
        Error as RuntimeError,
        jit::{self, JitOptions},
    },
    settings::Config,
};
use std::{collections::BTreeMap, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    // Bare names: types and placements are inferred, shapes are given when it is bound.
    let program = Program::parse("gather(a) -> gemm(b) -> bias(c) -> gelu")?;
    let shapes = [("a", vec![8192, 4096]), ("b", vec![4096, 14336]), ("c", vec![14336])];
    let shapes = shapes.map(|(name, shape)| (name.to_string(), shape));
    let bound = program.bind(&BTreeMap::new(), &BTreeMap::from(shapes))?;

    let config = Config { ranks: 8, ..Config::default() };
    let (plan, proof) = passes::compile(&program, &bound, &config)?;
    println!("{proof}");

    let kernel = mk::emit::emit(&plan)?;
    // The rest is mk's device library. Snapshot tests keep this part alone (docs/dsl.md).
    println!("{}: {} lines of CUDA of its own", kernel.name, kernel.generated().lines().count());
    for role in &kernel.roles {
        println!("  CTAs {}..{}: {}", role.first_cta, role.first_cta + role.ctas, role.name);
    }

    let compiled = match jit::compile(&kernel, &JitOptions::default()) {
        Ok(compiled) => compiled,
        Err(error @ RuntimeError::NvrtcMissing { .. }) => {
            println!("not compiled: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let entry = compiled.report.entry(&kernel.entry).ok_or("the kernel has no entry point")?;
    println!(
        "{} bytes of CUBIN in {:.1?}{}: {} registers, {} bytes spilled, {} bytes of shared memory",
        compiled.cubin.len(),
        compiled.compile_time,
        if compiled.from_cache { " from the cache" } else { "" },
        entry.registers,
        entry.spill_store_bytes,
        entry.smem_static_bytes + kernel.smem_bytes
    );
    Ok(())
}
