//! Writes the CUDA of every pipeline of the tests into a folder, for `cargo xtask sass`: `NAME.cu`, and
//! `NAME_traced.cu` for the case whose traced kernel has a snapshot.
//!
//! The first line of each file holds the compiler options of its kernel.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{CASES, VARIANTS, plan};
use mk_codegen::{
    emit::{Options, emit_with},
    plan::Plan,
};
use std::{error::Error, fs, path::Path};

/// The case of `tests/trace.rs`.
const TRACED: &str = "gather_gemm";

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: kernels FOLDER")?;
    let folder = Path::new(&folder);
    for (name, source, ranks, shapes) in CASES {
        write(folder, name, plan(source, *ranks, shapes))?;
    }
    for variant in VARIANTS {
        write(folder, variant.case.0, variant.plan(variant.case.2))?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, plan: Result<Plan, impl Error>) -> Result<(), String> {
    let plan = plan.map_err(|e| format!("{name}: {e}"))?;
    for trace in [false, true] {
        if trace && name != TRACED {
            continue;
        }
        let kernel = emit_with(&plan, Options { trace }).map_err(|e| format!("{name}: {e}"))?;
        let path = folder.join(format!("{name}{}.cu", if trace { "_traced" } else { "" }));
        let text = format!("// options: {}\n{}", kernel.options.join(" "), kernel.cuda);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
