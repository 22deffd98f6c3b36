//! `mk build`.

use crate::{
    failure::Result,
    options::PipelineArgs,
    output::{self, all_writable, detail, write_file},
    pipeline::load,
    progress::Progress,
    terminal::note_on_stderr,
};
use mk::{
    abi::{KernelSource, count},
    emit::Options,
    runtime::{
        Error,
        jit::{self, Compiled, JitOptions, SassCounts},
    },
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Options of `mk build`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Where to write the CUBIN [default: nowhere]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With records of what agents do, as `mk trace` runs it
    #[arg(long)]
    trace: bool,
    /// Compile even if the kernel cache has it
    #[arg(long)]
    no_cache: bool,
    /// Print all of it as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Opcodes that tell how a kernel moves and multiplies.
const OPCODES: &[(&str, &str)] = &[
    ("HGMMA", "wgmma"),
    ("QGMMA", "wgmma of 8 bits"),
    ("UTMALDG", "TMA loads"),
    ("UTMASTG", "TMA stores"),
    ("UBLKCP", "bulk copies"),
    ("SYNCS", "mbarrier operations"),
    ("MEMBAR", "fences"),
];

/// Compiles and reports.
pub fn run(args: &Args) -> Result<()> {
    all_writable([&args.output])?;
    let options = Options { trace: args.trace };
    let kernel = load(&args.pipeline)?.kernel(options)?;
    let compiled = compile(&kernel, &args.pipeline, !args.no_cache)?;
    if let Some(path) = &args.output {
        write_file(path, &compiled.cubin)?;
        detail!("{}: {} bytes for {}", path.display(), compiled.cubin.len(), kernel.arch)?;
    }
    let sass = jit::disassemble(&compiled.cubin).map(|text| jit::count_sass(&text));
    say_all(&kernel, &compiled, &sass)?;
    output::report(|| report(&kernel, &compiled, &sass, args.output.as_deref()))
}

/// The CUBIN of a kernel. Where its settings are nobody's, it may spill registers: a default must build. Given settings
/// that spill are refused, and so are plans.
pub fn compile(kernel: &KernelSource, args: &PipelineArgs, use_cache: bool) -> Result<Compiled> {
    let options = JitOptions { use_cache, ..JitOptions::default() };
    let jit = |options| {
        let _progress = Progress::new("compiling");
        jit::compile(kernel, &options)
    };
    match jit(options.clone()) {
        Err(Error::Spill { store_bytes, load_bytes, .. })
            if !args.is_plan() && args.settings().next().is_none() =>
        {
            note_on_stderr(format_args!(
                "with these settings, which are not given, {} spills registers ({store_bytes} bytes of stores, \
                 {load_bytes} bytes of loads) and is slower for it: `mk tune` looks for others",
                kernel.name
            ));
            Ok(jit(JitOptions { allow_spills: true, ..options })?)
        }
        compiled => Ok(compiled?),
    }
}

fn say_all(kernel: &KernelSource, made: &Compiled, sass: &Result<SassCounts, Error>) -> Result<()> {
    detail!(
        "kernel         {} ({}), {}",
        kernel.name,
        kernel.arch,
        count(kernel.world_size, "rank")
    )?;
    let roles: Vec<_> = kernel.roles.iter().map(|r| format!("{} {}", r.ctas, r.name)).collect();
    detail!("CTAs           {} ({}) of {} threads", kernel.grid, roles.join(", "), kernel.block)?;
    if let Some(entry) = made.report.entry(&kernel.entry) {
        detail!("registers      {} a thread at entry", entry.registers)?;
        detail!(
            "spills         {} bytes stored, {} bytes loaded, {} bytes of stack",
            entry.spill_store_bytes,
            entry.spill_load_bytes,
            entry.stack_bytes
        )?;
        detail!(
            "shared memory  {} bytes ({} dynamic, {} static)",
            kernel.smem_bytes + entry.smem_static_bytes,
            kernel.smem_bytes,
            entry.smem_static_bytes
        )?;
    }
    detail!(
        "workspace      {} bytes symmetric, {} bytes scratch a rank",
        kernel.workspace.symmetric_bytes,
        kernel.workspace.scratch_bytes
    )?;
    let from = if made.from_cache { " (from the cache; --no-cache compiles)" } else { "" };
    detail!("compile time   {:.1?}{from}", made.compile_time)?;
    for (code, texts) in warnings(made) {
        let more = match texts.len() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        detail!("warning        {code} {}{more}", texts[0])?;
    }
    match sass {
        Ok(counts) => {
            let total: u32 = counts.iter().map(|(_, n)| n).sum();
            let list: Vec<_> = OPCODES
                .iter()
                .map(|(op, what)| format!("{op} {} ({what})", counts.get(op)))
                .collect();
            detail!("SASS           {total} instructions: {}", list.join(", "))
        }
        Err(error) => detail!("SASS           not counted: {error}"),
    }
}

/// Texts of the compiler's warnings, by code.
fn warnings(compiled: &Compiled) -> BTreeMap<&str, Vec<&str>> {
    let mut warnings = BTreeMap::<_, Vec<_>>::new();
    for warning in &compiled.report.warnings {
        warnings.entry(&*warning.code).or_default().push(&*warning.text);
    }
    warnings
}

fn report(
    kernel: &KernelSource,
    compiled: &Compiled,
    sass: &Result<SassCounts, Error>,
    output: Option<&Path>,
) -> Value {
    let entry = compiled.report.entry(&kernel.entry);
    let roles = kernel.roles.iter().map(|r| json!({ "name": r.name, "ctas": r.ctas }));
    let sass = sass.as_ref().ok().map(|counts| {
        let total: u32 = counts.iter().map(|(_, n)| n).sum();
        let opcodes = counts.iter().map(|(op, n)| (op.to_string(), Value::from(n)));
        json!({ "instructions": total, "opcodes": opcodes.collect::<serde_json::Map<_, _>>() })
    });
    json!({
        "kernel": kernel.name,
        "arch": kernel.arch,
        "ranks": kernel.world_size,
        "ctas": kernel.grid,
        "threads": kernel.block,
        "roles": roles.collect::<Vec<_>>(),
        "registers": entry.map(|e| e.registers),
        "spill_store_bytes": entry.map(|e| e.spill_store_bytes),
        "spill_load_bytes": entry.map(|e| e.spill_load_bytes),
        "stack_bytes": entry.map(|e| e.stack_bytes),
        "smem_dynamic_bytes": kernel.smem_bytes,
        "smem_static_bytes": entry.map(|e| e.smem_static_bytes),
        "workspace_symmetric_bytes": kernel.workspace.symmetric_bytes,
        "workspace_scratch_bytes": kernel.workspace.scratch_bytes,
        "cubin_bytes": compiled.cubin.len(),
        "compile_s": compiled.compile_time.as_secs_f64(),
        "from_cache": compiled.from_cache,
        "warnings": warnings(compiled),
        "sass": sass,
        "output": output,
    })
}
