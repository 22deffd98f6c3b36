//! `mk build`.

use crate::{
    emit::emit_with,
    failure::Failure,
    options::PipelineArgs,
    output::{say, write_file},
    pipeline::load_verified,
    progress::Progress,
};
use mk::{
    abi::KernelSource,
    emit::Options,
    runtime::jit::{self, Compiled, JitOptions},
};
use std::collections::BTreeMap;
use std::path::PathBuf;

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
}

/// Opcodes that tell how a kernel moves and multiplies.
const OPCODES: &[(&str, &str)] = &[
    ("HGMMA", "wgmma"),
    ("UTMALDG", "TMA loads"),
    ("UTMASTG", "TMA stores"),
    ("UBLKCP", "bulk copies"),
    ("SYNCS", "mbarrier operations"),
    ("MEMBAR", "fences"),
];

/// Compiles and reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = Options { trace: args.trace };
    let kernel = emit_with(&load_verified(&args.pipeline)?, options)?;
    let compiled = compile(&kernel, !args.no_cache)?;
    if let Some(path) = &args.output {
        write_file(path, &compiled.cubin)?;
        say!("{}: {} bytes for {}", path.display(), compiled.cubin.len(), kernel.arch)?;
    }
    report(&kernel, &compiled)
}

/// The CUBIN of a kernel.
pub fn compile(kernel: &KernelSource, use_cache: bool) -> Result<Compiled, Failure> {
    let _progress = Progress::new("compiling");
    let options = JitOptions { use_cache, ..JitOptions::default() };
    jit::compile(kernel, &options).map_err(Failure::new)
}

fn report(kernel: &KernelSource, compiled: &Compiled) -> Result<(), Failure> {
    say!("kernel         {} ({}), {} ranks", kernel.name, kernel.arch, kernel.world_size)?;
    let roles: Vec<_> = kernel.roles.iter().map(|r| format!("{} {}", r.ctas, r.name)).collect();
    say!("CTAs           {} ({}) of {} threads", kernel.grid, roles.join(", "), kernel.block)?;
    if let Some(entry) = compiled.report.entry(&kernel.entry) {
        say!("registers      {} a thread at entry", entry.registers)?;
        say!(
            "spills         {} bytes stored, {} bytes loaded, {} bytes of stack",
            entry.spill_store_bytes,
            entry.spill_load_bytes,
            entry.stack_bytes
        )?;
        say!(
            "shared memory  {} bytes ({} dynamic, {} static)",
            kernel.smem_bytes + entry.smem_static_bytes,
            kernel.smem_bytes,
            entry.smem_static_bytes
        )?;
    }
    say!(
        "workspace      {} bytes symmetric, {} bytes scratch a rank",
        kernel.workspace.symmetric_bytes,
        kernel.workspace.scratch_bytes
    )?;
    let from = if compiled.from_cache { " (from the cache; --no-cache compiles)" } else { "" };
    say!("compile time   {:.1?}{from}", compiled.compile_time)?;
    let mut warnings = BTreeMap::<_, Vec<_>>::new();
    for warning in &compiled.report.warnings {
        warnings.entry(&warning.code).or_default().push(&warning.text);
    }
    for (code, texts) in warnings {
        let more = match texts.len() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        say!("warning        {code} {}{more}", texts[0])?;
    }
    match jit::disassemble(&compiled.cubin) {
        Ok(sass) => {
            let counts = jit::count_sass(&sass);
            let total: u32 = counts.iter().map(|(_, n)| n).sum();
            let list: Vec<_> = OPCODES
                .iter()
                .map(|(op, what)| format!("{op} {} ({what})", counts.get(op)))
                .collect();
            say!("SASS           {total} instructions: {}", list.join(", "))
        }
        Err(error) => say!("SASS           not counted: {error}"),
    }
}
