//! The translation units of the litmus kernels, and their sources as the code generator would hand them over.

use crate::cases::{CASES, Family, Litmus};
use mk::abi::{
    DType, KernelSource, MapBase, RankBinding, Swizzle, TensorArg, TensorDirection, TensorMapSpec,
    WorkspaceLayout,
    device::{FaultRecord, TENSOR_MAP_BYTES},
};
use mk::emit::library;
use mk::runtime::Error;
use mk::runtime::jit::{self, Compiled, JitOptions, Unit};
use std::fmt::Write;
use std::sync::OnceLock;

/// Translation units: compiled side by side, because one would take a quarter of a minute.
pub const UNITS: usize = 8;

/// Writing CTAs of a rank, and as many reading ones.
pub const PAIRS: u32 = 48;
/// CTAs that make noise.
const NOISE_CTAS: u32 = 16;
/// CTAs of the hand-shake, each with an area of its own.
pub const AREAS: u32 = 48;
/// CTAs that write fault records.
pub const RECORDS: u32 = 32;
/// Records that each of them writes in a launch.
pub const RECORDS_PER_LAUNCH: u32 = 2000;
/// Turns of a pair in a launch.
const TURNS: u32 = 3000;
/// 32-bit words of the kernels' `Tally`.
pub const TALLY_WORDS: u64 = 16;

/// Sizes of payloads, `[rows, row bytes]`, as the boxes of their tensor maps; pairs take them in turn.
const CLASSES: [[u32; 2]; 5] = [[1, 16], [1, 128], [8, 128], [64, 128], [128, 128]];
/// A panel of the GEMM storer is of this class.
const PANEL_CLASS: usize = 3;
const ROW_BYTES: u32 = 128;
const SLOT_BYTES: u32 = 16 << 10;
const SLOTS: u32 = 2;
const STAGES: u32 = 2;
const WORKER_WARPS: u32 = 4;
const THREADS: u32 = 32 * (WORKER_WARPS + 2);
/// Stores that precede the payload in some turns: longer than a release and an acquire take.
const JUNK_STORES: u32 = 16;
/// What a CTA that makes noise moves at a time.
const NOISE_BYTES: u32 = 64 << 10;
/// Memory that noise reads: more than the L2 cache holds.
const LITTER_BYTES: u64 = 64 << 20;

/// Signal words, in 32-bit words from the start of symmetric memory.
const ENTERED_WORD: u32 = 256;
const FULL_WORD: u32 = 512;
const WORD_STRIDE: u32 = 8;
const FREE_WORD: u32 = FULL_WORD + PAIRS * WORD_STRIDE;
const DONE_WORD: u32 = FREE_WORD + PAIRS * WORD_STRIDE;

/// Bytes from the start of symmetric memory. Areas and all before them start as zero.
const AREAS_AT: u64 = 8 << 10;
const AREA_BYTES: u64 = 4 << 10;
const PAYLOAD_AT: u64 = AREAS_AT + AREAS as u64 * AREA_BYTES;
const JUNK_AT: u64 = PAYLOAD_AT + (PAIRS * SLOTS * SLOT_BYTES) as u64;
const NOISE_AT: u64 = JUNK_AT + (PAIRS * SLOT_BYTES) as u64;
const SYMMETRIC_BYTES: u64 = NOISE_AT + (NOISE_CTAS * NOISE_BYTES) as u64;
/// Bytes of scratch ahead of the litter: what forwarding writers load.
const SOURCE_BYTES: u64 = (PAIRS * STAGES * SLOT_BYTES) as u64;

const _: () = assert!(DONE_WORD as u64 * 4 + 4 <= AREAS_AT);
// Odd launches of the boundary litmus fill the payload's memory with one slot per CTA.
const _: () = assert!(2 * PAIRS == PAIRS * SLOTS);
const _: () = assert!(PAYLOAD_AT.is_multiple_of(TENSOR_MAP_BYTES as u64));

/// The numbers above, as the kernels know them.
fn constants() -> String {
    let mut out = String::new();
    let mut put = |name: &str, value: u64| {
        let ty = if value > u64::from(u32::MAX) { "u64" } else { "u32" };
        writeln!(out, "constexpr {ty} k{name} = {value};").expect("a string");
    };
    let n = CLASSES.len() as u64;
    for (name, value) in [
        ("Maps", 2 * n + 1),
        ("StoreMap", 0),
        ("PanelMap", n),
        ("LoadMap", n + 1),
        ("Classes", n),
        ("PanelClass", PANEL_CLASS as u64),
        ("Pairs", PAIRS.into()),
        ("Slots", SLOTS.into()),
        ("SlotBytes", SLOT_BYTES.into()),
        ("SlotRows", (SLOT_BYTES / ROW_BYTES).into()),
        ("Stages", STAGES.into()),
        ("WorkerWarps", WORKER_WARPS.into()),
        ("Workers", (32 * WORKER_WARPS).into()),
        ("Threads", THREADS.into()),
        ("Turns", TURNS.into()),
        ("Records", RECORDS_PER_LAUNCH.into()),
        ("JunkStores", JUNK_STORES.into()),
        ("NoiseBytes", NOISE_BYTES.into()),
        ("LitterBytes", LITTER_BYTES),
        ("SourceBytes", SOURCE_BYTES),
        ("TallyWords", TALLY_WORDS),
        ("EnteredWord", ENTERED_WORD.into()),
        ("FullWord", FULL_WORD.into()),
        ("FreeWord", FREE_WORD.into()),
        ("DoneWord", DONE_WORD.into()),
        ("WordStride", WORD_STRIDE.into()),
        ("AreasAt", AREAS_AT),
        ("AreaBytes", AREA_BYTES),
        ("PayloadAt", PAYLOAD_AT),
        ("JunkAt", JUNK_AT),
        ("NoiseAt", NOISE_AT),
    ] {
        put(name, value);
    }
    out.push_str("MK_DEVICE u32 class_bytes(u32 size_class) {\n");
    for (i, [rows, bytes]) in CLASSES.iter().enumerate() {
        writeln!(out, "  if (size_class == {i}) return {};", rows * bytes).expect("a string");
    }
    out.push_str("  return 0;\n}\n");
    out
}

/// The device library as emitted kernels have it, then the litmus kernels, then one entry point per litmus of a unit.
fn text(unit: usize) -> String {
    let mut out = library::text();
    // The library may have or get the same names.
    out.push_str("namespace litmus {\n");
    out.push_str(&constants());
    for file in [
        include_str!("common.cu"),
        include_str!("message.cu"),
        include_str!("write.cu"),
        include_str!("read.cu"),
        include_str!("pairs.cu"),
        include_str!("entered.cu"),
        include_str!("fault.cu"),
        include_str!("boundary.cu"),
    ] {
        out.push_str(file);
    }
    for litmus in CASES.iter().skip(unit).step_by(UNITS) {
        let (function, case) = litmus.family.function();
        writeln!(
            out,
            "extern \"C\" __global__ void __launch_bounds__(kThreads, 1) {}(const __grid_constant__ Params p) {{\n  \
             {function}<{case}{{{}}}>(p);\n}}",
            litmus.name, litmus.fields
        )
        .expect("a string");
    }
    out.push_str("}  // namespace litmus\n");
    out
}

/// The compiled units; litmus `i` of [`CASES`] is in unit `i % UNITS`. Compiled once, by whichever test comes first.
///
/// # Errors
/// Why there are none.
pub fn compiled() -> Result<&'static [Compiled], &'static Error> {
    static COMPILED: OnceLock<Result<Vec<Compiled>, Error>> = OnceLock::new();
    let compile = |unit: usize| {
        let (name, cuda) = (format!("litmus {unit}"), text(unit));
        if let Some(dir) = std::env::var_os("MK_DUMP_KERNELS") {
            let path = std::path::Path::new(&dir).join(format!("litmus_{unit}.cu"));
            std::fs::write(path, &cuda).expect("writable");
        }
        let unit = Unit { name: &name, cuda: &cuda, arch: "sm_90a", options: &options() };
        // A cache that test runs share, and that is not the user's.
        let cache_dir = Some(std::env::temp_dir().join("mk-test-cache"));
        jit::compile_unit(unit, &JitOptions { cache_dir, ..JitOptions::default() })
    };
    let all = || {
        std::thread::scope(|scope| {
            let units: Vec<_> = (0..UNITS).map(|u| scope.spawn(move || compile(u))).collect();
            units.into_iter().map(|u| u.join().expect("compiling does not panic")).collect()
        })
    };
    COMPILED.get_or_init(all).as_deref()
}

fn options() -> Vec<String> {
    // A litmus uses part of the library.
    vec!["-diag-suppress=177".into()]
}

/// A litmus for a world of this many ranks; rank p writes to rank p + 1, the last one to the first.
pub fn source(litmus: &Litmus, world_size: u32) -> KernelSource {
    let mut tensors = vec![tensor("tally")];
    let mut shapes = vec![vec![TALLY_WORDS]];
    if litmus.family == Family::Fault {
        tensors.push(tensor("records"));
        shapes.push(vec![u64::from(RECORDS) * size_of::<FaultRecord>() as u64 / 4]);
    }
    let ranks = (0..world_size).map(|rank| RankBinding {
        tensor_shapes: shapes.clone(),
        maps: maps((rank + 1) % world_size),
    });
    KernelSource {
        name: format!("litmus {}", litmus.name),
        cuda: String::new(), // compiled apart, with all others
        entry: litmus.name.into(),
        arch: "sm_90a".into(),
        options: options(),
        world_size,
        grid: match litmus.family {
            Family::Message => 2 * PAIRS + NOISE_CTAS,
            Family::Boundary => 2 * PAIRS,
            Family::Entered => AREAS,
            Family::Fault => RECORDS,
        },
        net: None,
        cluster: 1,
        cooperative: true,
        block: THREADS,
        smem_bytes: match litmus.family {
            Family::Message | Family::Boundary => STAGES * SLOT_BYTES + 256,
            Family::Entered | Family::Fault => 0,
        },
        workspace: WorkspaceLayout {
            symmetric_bytes: SYMMETRIC_BYTES,
            zeroed_bytes: PAYLOAD_AT,
            scratch_bytes: match litmus.family {
                Family::Message => SOURCE_BYTES + LITTER_BYTES,
                _ => 0,
            },
        },
        tensors,
        ranks: ranks.collect(),
        roles: vec![],
        edges: vec![],
        spill_bytes: 0,
        plan_hash: 0x6d6b,
        trace: None,
        host: None,
        runtime_dims: vec![],
        meets: true,
    }
}

fn tensor(name: &str) -> TensorArg {
    TensorArg {
        name: name.into(),
        dtype: DType::I32,
        direction: TensorDirection::Out,
        in_place: None,
        own_rows: false,
    }
}

/// Maps over the payload: `to`'s for stores, by class; the swizzled panel; this rank's own for loads, by class.
fn maps(to: u32) -> Vec<TensorMapSpec> {
    let map = |base, [rows, bytes]: [u32; 2], swizzle| TensorMapSpec {
        base,
        dtype: DType::Bf16,
        dims: vec![u64::from(ROW_BYTES) / 2, u64::from(PAIRS * SLOTS * SLOT_BYTES / ROW_BYTES)],
        strides_bytes: vec![ROW_BYTES.into()],
        box_dims: vec![bytes / 2, rows],
        swizzle,
    };
    let store = MapBase::Peer(to, PAYLOAD_AT);
    let panel = map(store, CLASSES[PANEL_CLASS], Swizzle::B128);
    let stores = CLASSES.iter().map(|c| map(store, *c, Swizzle::None));
    let loads = CLASSES.iter().map(|c| map(MapBase::Symmetric(PAYLOAD_AT), *c, Swizzle::None));
    stores.chain([panel]).chain(loads).collect()
}
