//! Where the time between a first call and its launch goes: `cargo run --release -p mk-function --example first_call`.
//!
//! Each case runs in processes of its own, with a cache of its own: one that finds it empty (cold), and one that finds
//! what that left (warm). All is done that a first call does on rank 0, but for GPUs: no module is loaded, and no
//! memory allocated. Times of parts are those of the threads that they ran on, and some run side by side: *total* is
//! what the caller waits for.
//!
//! On a machine that others use, too, `--cpu` says more: parts one after the other, in CPU seconds of all their
//! threads.
//!
//! With arguments only the cases whose names begin so; `--write` puts the table into `docs/first-call.md`.

use mk_codegen::{cost::Gpu, emit, settings::Config};
use mk_function::{
    build::{Composition, Making},
    choice::{Conditions, Fuse},
    cut::{Step, cut},
    kept::{Choices, Proofs, Prove},
};
use mk_runtime::jit::JitOptions;
use mk_syntax::{
    Bound, Program,
    grad::{Saves, grad},
};
use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

type Res<T> = Result<T, Box<dyn Error>>;

struct Case {
    name: &'static str,
    ranks: u32,
    text: &'static str,
    sizes: &'static [(&'static str, u64)],
    /// Whether it is the backward of the text that is called.
    derived: bool,
}

const MLP: &str =
    "fn gated(x: bf16[M, K] @ shard(0), w: bf16[K, 2, F] @ shard(2), v: bf16[F, K] @ shard(0)) {
    gather(x) -> gemm(w) -> swiglu -> gemm(v) -> reduce_scatter
}";

const EXPERTS: &str = "pub fn experts(x: bf16[T, H] @ shard(0), ids: i32[T, K] @ shard(0), gate: f32[T, K] @ shard(0),
    w1: bf16[E, H, 2, I] @ shard(0), w2: bf16[E, I, H] @ shard(0)) -> bf16[T, H] @ shard(0) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2) -> combine(gate)
}";

const CASES: &[Case] = &[
    Case {
        name: "gemm, 1 rank",
        ranks: 1,
        text: "fn product(a: bf16[M, K], b: bf16[K, N]) { gemm(a, b) }",
        sizes: &[("M", 4096), ("K", 4096), ("N", 14336)],
        derived: false,
    },
    Case {
        name: "gather -> gemm, 4 ranks",
        ranks: 4,
        text: "fn gathered(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) { gather(a) -> gemm(b) }",
        sizes: &[("M", 8192), ("K", 4096), ("N", 14336)],
        derived: false,
    },
    Case {
        name: "gated MLP, 4 ranks",
        ranks: 4,
        text: MLP,
        sizes: &[("M", 8192), ("K", 4096), ("F", 14336)],
        derived: false,
    },
    Case {
        name: "gated MLP, backward, 4 ranks",
        ranks: 4,
        text: MLP,
        sizes: &[("M", 8192), ("K", 4096), ("F", 14336)],
        derived: true,
    },
    Case {
        name: "MoE layer, 4 ranks",
        ranks: 4,
        text: EXPERTS,
        sizes: &[("T", 8192), ("K", 8), ("E", 128), ("H", 2048), ("I", 768)],
        derived: false,
    },
    Case {
        name: "DeepSeek-V3 layer, 8 ranks",
        ranks: 8,
        text: EXPERTS,
        sizes: &[("T", 8192), ("K", 8), ("E", 256), ("H", 7168), ("I", 2048)],
        derived: false,
    },
];

/// Parts of the time.
const PARTS: [&str; 6] = ["read, cut", "binary", "choose", "lower", "prove", "NVRTC"];
type Parts = [Duration; PARTS.len()];
/// Those that are columns of their own.
const COLUMNS: std::ops::Range<usize> = 2..6;
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/first-call.md");
/// Which case, in a process that runs one.
const ONE: &str = "MK_FIRST_CALL";
/// Whether that one counts CPU seconds.
const CPU: &str = "MK_FIRST_CALL_CPU";

fn main() -> Res<()> {
    if let Ok(name) = env::var(ONE) {
        let case = CASES.iter().find(|c| c.name == name).ok_or("no such case")?;
        return one(case);
    }
    let cpu = env::args().any(|a| a == "--cpu");
    let wanted: Vec<String> = env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_string();
    let what = if cpu { "CPU seconds" } else { "Seconds" };
    println!("On {} cores, load {load} before. {what}; shares of the parts' sum.\n", cores());
    let mut table = format!(
        "| first call | cold: total | {} | warm: total |\n|---|---|{}---|\n",
        PARTS[COLUMNS].join(" | "),
        "---|".repeat(COLUMNS.len())
    );
    print!("{table}");
    for case in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|w| case.name.starts_with(w.as_str())) {
            continue;
        }
        let dir = env::temp_dir().join(format!("mk-first-call-{}", std::process::id()));
        let (cold, parts) = measured(case, &dir, cpu)?;
        let (warm, _) = measured(case, &dir, cpu)?;
        fs::remove_dir_all(&dir)?;
        let row = row(case.name, cold, &parts, warm);
        println!("{row}");
        table += &format!("{row}\n");
    }
    if env::args().any(|a| a == "--write") {
        write(&table)?;
    }
    Ok(())
}

/// A case in a process of its own: its time, and that of its parts.
fn measured(case: &Case, dir: &Path, cpu: bool) -> Res<(f64, Vec<f64>)> {
    let begin = Instant::now();
    let mut command = Command::new(env::current_exe()?);
    command.env(ONE, case.name).env("MK_CACHE_DIR", dir);
    let output = if cpu { command.env(CPU, "1") } else { &mut command }.output()?;
    let total = begin.elapsed().as_secs_f64();
    let text = String::from_utf8(output.stdout)?;
    let parts = text
        .lines()
        .find_map(|l| l.strip_prefix("parts "))
        .ok_or_else(|| format!("{}: {}", case.name, String::from_utf8_lossy(&output.stderr)))?;
    let parts: Vec<f64> = parts.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    Ok((if cpu { parts.iter().sum() } else { total }, parts))
}

/// Puts the table in the place of the one that the document has.
fn write(table: &str) -> Res<()> {
    let text = fs::read_to_string(DOCUMENT)?;
    let (before, rest) = text.split_once("| first call |").ok_or("the document has no table")?;
    let after: Vec<&str> = rest.lines().skip(1).skip_while(|l| l.starts_with('|')).collect();
    fs::write(DOCUMENT, format!("{before}{table}{}\n", after.join("\n")))?;
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn row(name: &str, cold: f64, parts: &[f64], warm: f64) -> String {
    let sum: f64 = parts.iter().sum();
    let share = |part: &f64| format!("{part:.2} ({:.0} %)", 100.0 * part / sum.max(1e-9));
    let parts: Vec<String> = parts[COLUMNS].iter().map(share).collect();
    format!("| {name} | {cold:.2} | {} | {warm:.2} |", parts.join(" | "))
}

/// A first call, and the times of its parts on stdout. The kernels of a backward are made at a time, as Python makes
/// them.
fn one(case: &Case) -> Res<()> {
    let jit = JitOptions::default();
    let mut parts = [Duration::ZERO; PARTS.len()];
    let pieces = timed(&mut parts[0], || pieces(case))?;
    let kept = timed(&mut parts[1], || {
        (Choices::new(&jit, Prove::Cached), Proofs::new(&jit, Prove::Cached))
    });
    let one = |(program, bound): &(Program, Bound)| {
        made(case, program, bound, &jit, &kept).map_err(|e| e.to_string())
    };
    let made: Vec<Result<Parts, String>> = if in_cpu() {
        pieces.iter().map(one).collect()
    } else {
        thread::scope(|s| {
            let threads: Vec<_> = pieces.iter().map(|piece| s.spawn(|| one(piece))).collect();
            threads.into_iter().map(|t| t.join().expect("no piece panics")).collect()
        })
    };
    for made in made {
        parts.iter_mut().zip(made?).for_each(|(sum, part)| *sum += part);
    }
    let words = parts.map(|p| p.as_secs_f64().to_string());
    println!("parts {}", words.join(" "));
    Ok(())
}

/// Chooses, proves and compiles one kernel.
fn made(
    case: &Case,
    program: &Program,
    bound: &Bound,
    jit: &JitOptions,
    (choices, proofs): &(Choices, Proofs),
) -> Res<Parts> {
    let mut parts = [Duration::ZERO; PARTS.len()];
    let gpu = Gpu::from("NVIDIA H100 80GB HBM3");
    let config = Config { ranks: case.ranks, ..Config::default() };
    let search = Some((&gpu, None));
    let terms = Conditions { config: &config, fuse: Fuse::Auto, overlap: false, search };
    let choice = timed(&mut parts[2], || choices.settle(program, bound, &terms));
    let making = Making { program, bound, emission: emit::Options::default() };
    if in_cpu() {
        let made = timed(&mut parts[4], || Composition::with(making, &choice, proofs))?;
        // Some have no kernel with what was chosen: what takes its place takes as long.
        let _ = timed(&mut parts[5], || made.compile(jit));
        // What the first of these held.
        let mut lower = Duration::ZERO;
        timed(&mut lower, || Composition::with(making, &choice, proofs))?;
        parts[3] += lower;
        parts[4] = parts[4].saturating_sub(lower);
        return Ok(parts);
    }
    let (made, compiled) = Composition::make(making, &choice, jit, Some(&config), proofs)?;
    parts[3] += made.kernels.iter().map(|k| k.lower_time).sum::<Duration>();
    parts[4] += made.kernels.iter().map(|k| k.prove_time).sum::<Duration>();
    parts[5] += compiled.iter().map(|c| c.compile_time).sum::<Duration>();
    Ok(parts)
}

/// What is compiled: the pipeline, or the kernels of its backward.
fn pieces(case: &Case) -> Res<Vec<(Program, Bound)>> {
    let program = Program::parse(case.text).map_err(|e| e.to_string())?;
    if !case.derived {
        let bound = bind(&program, case)?;
        return Ok(vec![(program, bound)]);
    }
    let made = grad(&program, None, Saves::default()).map_err(|e| e.to_string())?;
    let backward = made.backward.ok_or("no backward")?;
    let whole = bind(&backward, case)?;
    let steps = cut(&backward, &whole, case.ranks, &[])?;
    steps.into_iter().filter(|step| step.is_kernel).map(|step| sized(step, &whole)).collect()
}

fn bind(program: &Program, case: &Case) -> Res<Bound> {
    let known = case.sizes.iter().filter(|(name, _)| program.symbol(name).is_some());
    let known = known.map(|(name, n)| (name.to_string(), *n)).collect();
    program
        .bind(&known, &BTreeMap::new())
        .and_then(|bound| bound.on(program, case.ranks))
        .map_err(|e| e.to_string().into())
}

/// A step with the sizes that its parameters have in the whole.
fn sized(step: Step, whole: &Bound) -> Res<(Program, Bound)> {
    let mut shapes = BTreeMap::new();
    for (id, tensor) in step.inputs.iter().zip(step.program.tensors()) {
        let mut shape = whole.shape(*id).ok_or("a parameter without a shape")?.to_vec();
        if step.flat.contains(id) {
            shape = vec![shape[0], shape[1] * shape[2]];
        }
        shapes.insert(tensor.name.clone(), shape);
    }
    let bound = step.program.bind(&BTreeMap::new(), &shapes).map_err(|e| e.to_string())?;
    Ok((step.program, bound))
}

/// Adds the time of some work.
fn timed<T>(time: &mut Duration, work: impl FnOnce() -> T) -> T {
    let (begin, spent) = (Instant::now(), cpu_time());
    let done = work();
    *time += if in_cpu() { cpu_time().saturating_sub(spent) } else { begin.elapsed() };
    done
}

fn in_cpu() -> bool {
    env::var_os(CPU).is_some()
}

/// CPU time of this process so far, in its own code.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    // utime and stime, the 14th and 15th field (proc_pid_stat(5)), in ticks of 10 ms.
    let ticks: u64 = fields.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}
