//! Every generated kernel through the real compiler: no spills, no serialised wgmma, the instructions that were meant.

#[path = "../mk-codegen/tests/common/mod.rs"]
mod common;

use common::{CASES, VARIANTS, plan};
use mk::runtime::jit::{self, JitOptions};

#[test]
fn kernels_compile_to_cubin() {
    compile(mk::emit::Options::default());
}

#[test]
fn traced_kernels_compile_to_cubin() {
    compile(mk::emit::Options { trace: true });
}

fn compile(emission: mk::emit::Options) {
    let options = JitOptions { use_cache: false, ..JitOptions::default() };
    let defaults = CASES.iter().map(|case| (case, plan(case.1, case.2, case.3)));
    let variants = VARIANTS.iter().map(|v| (&v.case, v.plan(v.case.2)));
    for ((name, source, ..), plan) in defaults.chain(variants) {
        let plan = plan.unwrap_or_else(|e| panic!("{name}: {e}"));
        let kernel = mk::emit::emit_with(&plan, emission).unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Some(dir) = std::env::var_os("MK_DUMP_KERNELS") {
            std::fs::write(
                std::path::Path::new(&dir)
                    .join(format!("{name}{}.cu", if emission.trace { ".traced" } else { "" })),
                &kernel.cuda,
            )
            .expect("writable");
        }
        let compiled = jit::compile(&kernel, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let entry = compiled.report.entry(&kernel.entry).expect("the entry point is reported");
        println!(
            "{name}{}: {} registers, {} bytes of stack, {:?}",
            if emission.trace { ", traced" } else { "" },
            entry.registers,
            entry.stack_bytes,
            compiled.compile_time
        );
        // Traced in an inner loop, agents keep some words in memory.
        let traced_loop = emission.trace && plan.families.values().any(|f| f.inner.is_some());
        let allowed = if traced_loop { kernel.spill_bytes } else { 0 };
        assert!(
            entry.spill_store_bytes <= allowed && (allowed > 0 || !entry.spills()),
            "{name} spills: {entry:?}"
        );
        assert!(
            compiled.compile_time.as_secs_f64() < 2.0 || cfg!(debug_assertions),
            "{name}: {:?}",
            compiled.compile_time
        );
        let sass = jit::disassemble(&compiled.cubin).unwrap_or_else(|e| panic!("{name}: {e}"));
        let counts = jit::count_sass(&sass);
        println!("  {} instructions", counts.iter().map(|(_, n)| n).sum::<u32>());
        if source.contains("gemm") {
            assert!(
                counts.get("HGMMA") > 0 && counts.get("UTMALDG") > 0,
                "{name} does not use the tensor cores by TMA"
            );
        }
    }
}
