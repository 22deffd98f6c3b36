//! The device's code that fills tables, compiled for the host, where the lanes of a warp take turns: as the Rust builder, on 2,000
//! routings, and 10,000 by `cargo xtask sweep tokens`.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_codegen::{
    emit::library,
    plan::{
        BlocksError, Mask, Parts, RouteError, RoutePart, Routing as Routes, Side, block_table,
        bounds_table, check_documents, meets_table, prefix,
    },
};
use mk_skip::{Need, skip};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{env, fs, process::Command};

/// A warp, and what the library has of a GPU.
const WARP: &str = r#"
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ucontext.h>
#include <vector>
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
#define MK_DEVICE static inline

// A warp: each lane runs up to where all exchange numbers, one after the other.
static std::jmp_buf to_warp, to_lane[32], to_next[32];
static ucontext_t begin_lane[32];
static std::vector<char> stacks[32];
static u32 posted[2][32], turn[32], lane;
static bool done[32];

static u32 (*exchange(u32 v))[32] {
  u32 (*all)[32] = &posted[turn[lane] % 2];
  (*all)[lane] = v;
  ++turn[lane];
  if (setjmp(to_lane[lane]) == 0) std::longjmp(to_warp, 1);
  return all;
}
static u32 __shfl_sync(u32, u32 v, u32 from) { return (*exchange(v))[from]; }
static u32 __shfl_up_sync(u32, u32 v, u32 apart) { u32 (*all)[32] = exchange(v); return lane < apart ? v : (*all)[lane - apart]; }
static u32 __ballot_sync(u32, bool bit) {
  u32 (*all)[32] = exchange(bit), bits = 0;
  for (u32 l = 0; l < 32; ++l) bits |= (*all)[l] << l;
  return bits;
}
static void __syncwarp() { exchange(0); }
static u32 __popc(u32 v) { return static_cast<u32>(__builtin_popcount(v)); }
static int __ffs(u32 v) { return __builtin_ffs(static_cast<int>(v)); }
static u32 min(u32 a, u32 b) { return a < b ? a : b; }
static u32 max(u32 a, u32 b) { return a < b ? b : a; }
static i32 min(i32 a, i32 b) { return a < b ? a : b; }
static i32 max(i32 a, i32 b) { return a < b ? b : a; }
struct Vec16 { u32 x[4]; };
static Vec16 ld_vec16(const void* p) { Vec16 v; std::memcpy(&v, p, 16); return v; }
static void st_vec16(void* p, Vec16 v) { std::memcpy(p, &v, 16); }
static void red_add_gpu(u32* p, u32 v) { *p += v; }
static u32 atom_or_gpu(u32* p, u32 v) { const u32 old = *p; *p |= v; return old; }
static u32 ld_u32(const void* p) { return *static_cast<const u32*>(p); }
static void st_u32(void* p, u32 v) { *static_cast<u32*>(p) = v; }
static void st_u32x2(void* p, u32 x, u32 y) { static_cast<u32*>(p)[0] = x, static_cast<u32*>(p)[1] = y; }
constexpr u32 kNoPeer = ~0u;
KINDS
struct Fault { FaultKind kind; u32 edge, expected, seen, tile, peer; u64 waited_ns; u32 word; };
struct Context {};
static Fault fault;
static void give_up(const Context&, const Fault& f) { if (fault.kind == FaultKind{}) fault = f; }
CODE

// Runs `job(thread)` for every thread, warp by warp. A lane's stack is used again.
static u32 first_thread;
static void (*job)(u32);
static void run_lane() {
  for (;;) {
    job(first_thread + lane);
    done[lane] = true;
    if (setjmp(to_next[lane]) == 0) std::longjmp(to_warp, 1);
  }
}
static void begin_lanes() {
  for (u32 l = 0; l < 32; ++l) {
    stacks[l].resize(64 << 10);
    getcontext(&begin_lane[l]);
    begin_lane[l].uc_stack.ss_sp = stacks[l].data();
    begin_lane[l].uc_stack.ss_size = stacks[l].size();
    makecontext(&begin_lane[l], run_lane, 0);
  }
}
static void warp() {
  static bool ever = false;
  if (!ever) begin_lanes();
  for (u32 l = 0; l < 32; ++l) done[l] = false, turn[l] = 0;
  for (volatile bool begun = false, more = true; more; begun = true) {
    more = false;
    for (lane = 0; lane < 32; ++lane) {
      if (done[lane]) continue;
      if (setjmp(to_warp) == 0) {
        if (begun) std::longjmp(to_lane[lane], 1);
        if (ever) std::longjmp(to_next[lane], 1);
        setcontext(&begin_lane[lane]);
      }
      more = more || !done[lane];
    }
  }
  ever = true;
}
static void run(u32 threads, void (*f)(u32)) {
  job = f;
  for (first_thread = 0; first_thread < threads; first_thread += 32) warp();
}
"#;

/// Blocks of groups.
const BLOCKS: &str = r#"
static BlocksTask work;
static BeginsTask begins;
static u32 threads;
// Of each routing: groups, blocks, rows of a block, threads, counts; then the fault's kind, group or blocks, the table between guards, and
// where rows of groups begin between guards.
int main(int, char** argv) {
  std::FILE* in = std::fopen(argv[1], "rb");
  u32 head[4];
  while (std::fread(head, 4, 4, in) == 4) {
    std::vector<i32> counts(head[0]);
    if (std::fread(counts.data(), 4, head[0], in) != head[0]) return 1;
    std::vector<u32> table(2 * head[1] + 4, 0xdeadbeef);
    fault = Fault{};
    threads = head[3];
    work = BlocksTask{0, 0, reinterpret_cast<u64>(counts.data()), reinterpret_cast<u64>(table.data() + 2), head[0], head[1], head[2]};
    run(threads, [](u32 thread) { tabulate_blocks(Context{}, work, thread, threads); });
    const u32 said[3] = {static_cast<u32>(fault.kind), fault.seen, fault.tile};
    std::fwrite(said, 4, 3, stdout);
    std::fwrite(table.data(), 4, table.size(), stdout);
    std::vector<u32> first(head[0] + 5, 0xdeadbeef);
    if (fault.kind == FaultKind{}) {
      begins = BeginsTask{0, 0, reinterpret_cast<u64>(counts.data()), reinterpret_cast<u64>(first.data() + 2), head[0], head[2]};
      run(threads, [](u32 thread) { tabulate_phase(Context{}, begins, 0, thread, threads); });
    }
    std::fwrite(first.data(), 4, first.size(), stdout);
  }
  return 0;
}
"#;

/// What follows from a routing, for one rank: lists of all chunks, where their rows begin, blocks, tokens of rows, and places of its own tokens,
/// or of those of its rails in its node.
const ROUTES: &str = r#"
static ListTask list;
static BasesTask bases;
static SourcesTask sources;
static SlotsTask slotted;
static PlacesTask places;
static NodePlacesTask near;
static WantedTask wanted;
static DroppedTask dropped;
static LeavingTask leaves;
static ComingTask comes;
static u32 phase, threads;

// Of each routing: tokens of all ranks and the most of one, slots, experts, ranks, the rank, blocks, tokens of a chunk, threads, words of an id,
// rows of an expert that are kept, ranks of a node or 0, and the ids; then the fault's kind, what it saw and where, the id, and the tables between guards.
int main(int, char** argv) {
  std::FILE* in = std::fopen(argv[1], "rb");
  u32 head[12];
  while (std::fread(head, 4, 12, in) == 12) {
    const u32 tokens = head[0], most = head[1], slots = head[2], experts = head[3], ranks = head[4], rank = head[5], count = head[6], chunk = head[7], words = head[9], keep = head[10], local = head[11], nodes = local > 0 ? ranks / local : 1;
    threads = head[8];
    const u32 own = (experts + ranks - 1) / ranks, chunks = (most + chunk - 1) / chunk, all = ranks * chunks;
    const u32 width = ((kListEntries + 1) * experts + 1 + 3) / 4 * 4;
    std::vector<u32> ids(tokens * slots * words), counts(own + 4, 0xdeadbeef), all_lists(all * width + 4, 0xdeadbeef), all_bases((all + 1) * experts + 4, 0xdeadbeef);
    std::vector<u32> all_entries(2 * count + 4, 0xdeadbeef);
    u32 *lists = all_lists.data() + 2, *base = all_bases.data() + 2, *entries = all_entries.data() + 2;
    std::vector<u32> of_rows(count * 128 + 4, 0xdeadbeef);
    std::vector<u32> rows(count * 128 + 4, 0xdeadbeef), place(2 * nodes * most * slots + 4, 0xdeadbeef), kept(nodes * most * slots + 4, 0xdeadbeef);
    // Room for whole pieces of each rank's tokens.
    const u32 space = (most + 15) / 16 * 16;
    std::vector<u32> has(ranks * space + 4, 0xdeadbeef), lost(1 + 4, 0xdeadbeef);
    if (std::fread(ids.data(), 4, ids.size(), in) != ids.size()) return 1;
    fault = Fault{};
    for (u32 c = 0; c < all; ++c) {
      const u32 first = c / chunks * most + c % chunks * chunk, left = c % chunks * chunk < most ? most - c % chunks * chunk : 0;
      const u32 n = first < tokens ? min(min(left, chunk), tokens - first) : 0;
      list = ListTask{0, 0, reinterpret_cast<u64>(ids.data() + (n > 0 ? first : 0) * slots * words), reinterpret_cast<u64>(lists + c * width), words, n, slots, experts, first};
      for (phase = 0; phase < 3; ++phase) run(256, [](u32 thread) { tabulate_phase(Context{}, list, phase, thread, 256); });
    }
    for (u32 c = 0; c < ranks * ((space + chunk - 1) / chunk); ++c) {
      const u32 of = c / ((space + chunk - 1) / chunk), at = c % ((space + chunk - 1) / chunk) * chunk, first = of * most + at;
      const u32 n = first < tokens && at < most ? min(min(most - at, chunk), tokens - first) : 0;
      wanted = WantedTask{0, 0, reinterpret_cast<u64>(ids.data() + (n > 0 ? first : 0) * slots * words), reinterpret_cast<u64>(has.data() + 2 + of * space + at), words, n, slots, own, rank, min(space - at, chunk)};
      run(threads, [](u32 thread) { tabulate_phase(Context{}, wanted, 0, thread, threads); });
    }
    // What crosses, if there are nodes.
    const u32 parts = max(1u, (most + 255) / 256), wide = min(space, 256u);
    std::vector<u32> crossing(ranks * parts * nodes + 4, 0xdeadbeef), leaving(parts * nodes * wide + 4, 0xdeadbeef), coming(ranks * parts * wide + 4, 0xdeadbeef);
    for (u32 c = 0; local > 0 && c < ranks * parts; ++c) {
      const u32 of = c / parts, at = c % parts * 256, first = of * most + at;
      const u32 n = first < tokens && at < most ? min(min(most - at, 256u), tokens - first) : 0;
      const CrossingTask both{0, 0, reinterpret_cast<u64>(ids.data() + (n > 0 ? first : 0) * slots * words), reinterpret_cast<u64>(crossing.data() + 2 + c * nodes), reinterpret_cast<u64>(coming.data() + 2 + c * wide), words, n, slots, own * local, nodes, wide, rank / local};
      comes = ComingTask{both};
      run(threads, [](u32 thread) { tabulate_phase(Context{}, comes, 0, thread, threads); });
      if (of != rank) continue;
      leaves = LeavingTask{both};
      leaves.rows = reinterpret_cast<u64>(leaving.data() + 2 + c % parts * nodes * wide);
      run(threads, [](u32 thread) { tabulate_phase(Context{}, leaves, 0, thread, threads); });
    }
    // Every rank comes to the same end.
    const Fault listed = fault;
    u32 ended = 0;
    for (u32 r = 0; r < ranks; ++r) {
      fault = listed;
      bases = BasesTask{0, 0, reinterpret_cast<u64>(lists), reinterpret_cast<u64>(counts.data() + 2), reinterpret_cast<u64>(base), reinterpret_cast<u64>(entries), all, width, experts, own, r, 128, count, keep};
      for (phase = 0; phase < 3 && fault.kind == FaultKind{}; ++phase) run(threads, [](u32 thread) { tabulate_phase(Context{}, bases, phase, thread, threads); });
      ended += fault.kind != FaultKind{};
    }
    if (ended != 0 && ended != ranks) return 2;
    fault = listed;
    bases = BasesTask{0, 0, reinterpret_cast<u64>(lists), reinterpret_cast<u64>(counts.data() + 2), reinterpret_cast<u64>(base), reinterpret_cast<u64>(entries), all, width, experts, own, rank, 128, count, keep};
    for (phase = 0; phase < 3 && fault.kind == FaultKind{}; ++phase) run(threads, [](u32 thread) { tabulate_phase(Context{}, bases, phase, thread, threads); });
    if (fault.kind == FaultKind{}) {
      for (u32 b = 0; b < count; b += 3) {
        sources = SourcesTask{0, 0, bases.entries + b * 8, bases.lists, bases.bases, reinterpret_cast<u64>(rows.data() + 2 + b * 128), all, width, experts, rank * own, b, min(3u, count - b), 128};
        run(threads, [](u32 thread) { tabulate_phase(Context{}, sources, 0, thread, threads); });
        slotted = SlotsTask{0, 0, reinterpret_cast<u64>(ids.data()), sources.blocks, sources.sources, reinterpret_cast<u64>(of_rows.data() + 2 + b * 128), words, tokens, slots, rank * own, sources.count, 128};
        run(threads, [](u32 thread) { tabulate_phase(Context{}, slotted, 0, thread, threads); });
      }
      dropped = DroppedTask{0, 0, bases.lists, bases.bases, reinterpret_cast<u64>(lost.data() + 2), all, width, experts, own, rank, ranks, keep};
      for (phase = 0; phase < 2 && keep > 0; ++phase) run(threads, [](u32 thread) { tabulate_phase(Context{}, dropped, phase, thread, threads); });
      for (u32 i = 0; i < nodes * chunks; ++i) {
        const u32 node = i / chunks, c = i % chunks, of = local > 0 ? node * local + rank % local : rank;
        const u32 first = of * most + c * chunk, to = (node * most + c * chunk) * slots;
        const u32 n = first < tokens ? min(min(most - c * chunk, chunk), tokens - first) : 0, at = of * chunks + c;
        places = PlacesTask{0, 0, reinterpret_cast<u64>(ids.data() + (n > 0 ? first : 0) * slots * words), reinterpret_cast<u64>(lists + at * width), reinterpret_cast<u64>(base + at * experts), reinterpret_cast<u64>(base + all * experts), reinterpret_cast<u64>(place.data() + 2 + 2 * to), reinterpret_cast<u64>(kept.data() + 2 + to), words, n, slots, experts, own, keep};
        near = NodePlacesTask{places, rank / max(1u, local) * local, local};
        if (local > 0) run(threads, [](u32 thread) { tabulate_phase(Context{}, near, 0, thread, threads); });
        else run(threads, [](u32 thread) { tabulate_phase(Context{}, places, 0, thread, threads); });
      }
    }
    for (const auto* t : {&all_lists, &all_bases, &all_entries}) {
      const size_t n = t->size();
      if ((*t)[0] != 0xdeadbeef || (*t)[1] != 0xdeadbeef || (*t)[n - 2] != 0xdeadbeef || (*t)[n - 1] != 0xdeadbeef) return 3;
    }
    const u32 said[5] = {static_cast<u32>(fault.kind), fault.seen, fault.tile, static_cast<u32>(fault.waited_ns), static_cast<u32>(fault.waited_ns >> 32)};
    std::fwrite(said, 4, 5, stdout);
    for (const auto* t : {&counts, &rows, &place, &kept, &has, &of_rows, &lost, &crossing, &leaving, &coming}) std::fwrite(t->data(), 4, t->size(), stdout);
  }
  return 0;
}
"#;

/// What rows of documents meet, and which parts of their sequence.
const DOCUMENTS: &str = r#"
static BoundsTask bounds;
static MeetsTask meets;
static u32 threads;
// Of each sequence: where documents begin, how many numbers that are, tokens, rows of a part, places, parts, whose rows, the mask, threads; then
// the fault's kind, and both tables between guards.
int main(int, char** argv) {
  std::FILE* in = std::fopen(argv[1], "rb");
  u32 head[9];
  while (std::fread(head, 4, 9, in) == 9) {
    std::vector<i32> begins(head[0]);
    if (std::fread(begins.data(), 4, head[0], in) != head[0]) return 1;
    std::vector<u32> rows(2 * head[1] + 4, 0xdeadbeef), table(head[3] * head[4] + 4, 0xdeadbeef);
    fault = Fault{};
    threads = head[8];
    const u64 source = reinterpret_cast<u64>(begins.data());
    for (u32 first = 0; first < head[1]; first += 20) {
      bounds = BoundsTask{0, 0, source, reinterpret_cast<u64>(rows.data() + 2 + 2 * first), head[0], first, min(20u, head[1] - first), head[1], head[5] != 0, head[6] != 0, head[7]};
      run(threads, [](u32 thread) { tabulate_phase(Context{}, bounds, 0, thread, threads); });
    }
    meets = MeetsTask{0, 0, source, reinterpret_cast<u64>(table.data() + 2), head[0], head[3], head[4], head[1], head[2], head[5] != 0, head[6] != 0, head[7]};
    run(threads, [](u32 thread) { tabulate_phase(Context{}, meets, 0, thread, threads); });
    const u32 said = static_cast<u32>(fault.kind);
    std::fwrite(&said, 4, 1, stdout);
    std::fwrite(rows.data(), 4, rows.size(), stdout);
    std::fwrite(table.data(), 4, table.size(), stdout);
  }
  return 0;
}
"#;

/// From the first of these texts to before the second.
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let begin = text.find(from).unwrap_or_else(|| panic!("`{from}` is in the library"));
    let length = text[begin..].find(to).unwrap_or_else(|| panic!("`{to}` comes behind `{from}`"));
    &text[begin..begin + length]
}

struct Routing {
    counts: Vec<i32>,
    blocks: usize,
    rows: i32,
    threads: u32,
}

fn routings(n: usize) -> Vec<Routing> {
    let mut rng = SmallRng::seed_from_u64(34);
    let routing = |_| {
        let rows = [64, 128][rng.random_range(0..2)];
        let groups = match rng.random_range(0..20) {
            0 => rng.random_range(33..200),
            _ => rng.random_range(1..20),
        };
        let blocks = rng.random_range(1..60usize);
        let form = rng.random_range(0..6);
        let chosen = rng.random_range(0..groups);
        let mut counts: Vec<i32> = (0..groups)
            .map(|g| match form {
                0 => rng.random_range(0..rows * 2),
                1 if g == chosen => blocks as i32 * rows - rng.random_range(0..2),
                1 | 2 => 0,
                3 => rng.random_range(0..3) * rows,
                4 if g % 8 == 0 => rng.random_range(0..rows * 4),
                _ => rng.random_range(0..rows),
            })
            .collect();
        match rng.random_range(0..40) {
            0 => counts[chosen] = -1 - rng.random_range(0..9),
            1 => counts[chosen] = i32::MAX - rng.random_range(0..9),
            _ => {}
        }
        Routing { counts, blocks, rows, threads: [32, 32, 32, 256][rng.random_range(0..4)] }
    };
    (0..n).map(routing).collect()
}

/// What a program of the library's code says to its input, in a folder of this name; `None` without a compiler.
fn run(name: &str, main: &str, input: &[u8]) -> Option<Vec<i32>> {
    let library = library::text();
    let kinds = between(&library, "enum class FaultKind", "\n");
    let route = library.find("constexpr u32 kEntryTokens").expect("the last file's first line");
    let tables = between(
        &library,
        "struct BlocksTask {",
        "// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.\ntemplate <u32 kThreads, u32 kBarrier, class Edges, class Hooks>\nMK_DEVICE void tabulate_tasks",
    );
    let folder = env::temp_dir().join(format!("mk-tables-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let [source, program, file] = ["main.cpp", "main", "routings"].map(|name| folder.join(name));
    let warp =
        WARP.replace("KINDS", kinds).replace("CODE", &format!("{tables}{}", &library[route..]));
    fs::write(&source, warp + main).expect("writable");
    let mut compile = Command::new("c++");
    compile.args(["-std=c++20", "-O1", "-w", "-o"]).args([&program, &source]);
    let Ok(built) = compile.output() else {
        fs::remove_dir_all(&folder).expect("its folder goes");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::write(&file, input).expect("writable");
    let ran = Command::new(&program).arg(&file).output().expect("runs");
    fs::remove_dir_all(&folder).expect("its folder goes");
    assert!(ran.status.success(), "{}", ran.status);
    let words = ran.stdout.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Some(words.collect())
}

#[test]
fn blocks_of_groups() {
    let routings = routings(10_000);
    let mut bytes = Vec::new();
    for r in &routings {
        let head = [r.counts.len() as i32, r.blocks as i32, r.rows, r.threads as i32];
        bytes.extend(head.iter().chain(&r.counts).flat_map(|x| x.to_le_bytes()));
    }
    let Some(words) = run("blocks", BLOCKS, &bytes) else {
        return skip(Need::Program("c++"), "no C++ compiler");
    };
    let mut words = words.into_iter();
    let (mut tables, mut negative, mut many) = (0, 0, 0);
    let guard = 0xdead_beef_u32 as i32;
    for (i, r) in routings.iter().enumerate() {
        let said: Vec<i32> = words.by_ref().take(3).collect();
        let table: Vec<i32> = words.by_ref().take(2 * r.blocks + 4).collect();
        let (inner, n) = (&table[2..2 * r.blocks + 2], table.len());
        assert_eq!([table[0], table[1], table[n - 2], table[n - 1]], [guard; 4], "{i}");
        let begins: Vec<i32> = words.by_ref().take(r.counts.len() + 5).collect();
        let (begins, rest) =
            (&begins[2..r.counts.len() + 3], [begins[1], begins[begins.len() - 2]]);
        assert_eq!(rest, [guard; 2], "{i}");
        match block_table(&r.counts, r.rows, r.blocks) {
            Ok(want) => {
                assert_eq!((said[0], inner), (0, &want[..]), "{i}: {:?}", r.counts);
                assert_eq!(begins, prefix(&r.counts, r.rows), "{i}: {:?}", r.counts);
                tables += 1;
            }
            Err(BlocksError::Negative { group, rows }) => {
                assert_eq!(said, [7, rows, group as i32], "{i}: {:?}", r.counts);
                negative += 1;
            }
            Err(BlocksError::Capacity { .. }) => {
                assert!(said[0] == 8 && said[1] > r.blocks as i32, "{i}: {said:?}");
                many += 1;
            }
        }
    }
    assert!(tables > 4000 && negative > 100 && many > 500, "{tables} {negative} {many}");
}

/// A routing of a world, and the rank whose tables are made.
struct World {
    /// The experts; of 64 bits if they are `wide`.
    ids: Vec<i64>,
    wide: bool,
    tokens: usize,
    slots: usize,
    experts: usize,
    ranks: usize,
    rank: usize,
    blocks: usize,
    chunk: usize,
    threads: u32,
    /// Rows of an expert that are kept, or 0.
    keep: i32,
    /// Ranks of a node, or 0.
    local: usize,
}

fn worlds(n: usize) -> Vec<World> {
    let mut rng = SmallRng::seed_from_u64(1234);
    let world = |_| {
        let ranks = [1, 1, 2, 3, 4, 8][rng.random_range(0..6)];
        let most = [1, 2, 3, 16, 40][rng.random_range(0..5)];
        // The last rank may have fewer.
        let experts = ranks * most - rng.random_range(0..most);
        let slots = [1, 2, 3, 8][rng.random_range(0..4)].min(experts);
        let many = if rng.random_range(0..30) == 0 { 400 } else { 60 };
        let tokens = rng.random_range(1..many);
        let form = rng.random_range(0..4);
        let mut ids = Vec::with_capacity(tokens * slots);
        let one = rng.random_range(0..experts);
        for _ in 0..tokens {
            // Any, the same ones, few of them, or skewed.
            let first = match form {
                0 => rng.random_range(0..experts),
                1 => one,
                2 => rng.random_range(0..experts.div_ceil(8)),
                _ => rng.random_range(0..experts).min(rng.random_range(0..experts)),
            };
            let step = if experts % 7 == 0 || form == 1 { 1 } else { 7 };
            ids.extend((0..slots).map(|j| ((first + j * step) % experts) as i64));
        }
        let at = rng.random_range(0..ids.len());
        let wide = rng.random_range(0..3) == 0;
        // Slots of no expert, or nothing else.
        let none = [0, 0, 0, 1, 4, 8][rng.random_range(0..6)];
        ids.iter_mut().filter(|_| rng.random_range(0..8) < none).for_each(|id| *id = -1);
        match rng.random_range(0..30) {
            0 => ids[at] = experts as i64 + rng.random_range(0..3),
            1 => ids[at] = -2 - i64::from(rng.random_range(0..i32::MAX - 1)),
            // Their lower halves are experts, or none.
            2 | 3 if wide => ids[at] += rng.random_range(-5..5i64) << 32,
            2 if slots > 1 => ids[at] = ids[at / slots * slots + (at + 1) % slots],
            _ => {}
        }
        let (own, rank) = (most, rng.random_range(0..ranks));
        let blocks = own + [0, 1, 9][rng.random_range(0..3)];
        let chunk = [4, 16, 64, 256][rng.random_range(0..4)];
        let threads = [32, 64, 256][rng.random_range(0..3)];
        let keep = [0, 0, 128, 7][rng.random_range(0..4)];
        let local = [0, 1, 2][rng.random_range(0..3)];
        let local = if ranks > local && ranks % local.max(1) == 0 { local } else { 0 };
        World {
            ids,
            wide,
            tokens,
            slots,
            experts,
            ranks,
            rank,
            blocks,
            chunk,
            threads,
            keep,
            local,
        }
    };
    (0..n).map(world).collect()
}

#[test]
fn what_follows_from_a_routing() {
    // In `cargo xtask sweep tokens` so many, a fifth elsewhere.
    let n = if drawn::whole() { 10_000 } else { 2_000 };
    let worlds = worlds(n);
    let mut bytes = Vec::new();
    for w in &worlds {
        let most = w.tokens.div_ceil(w.ranks);
        let head = [w.tokens, most, w.slots, w.experts, w.ranks, w.rank, w.blocks, w.chunk];
        let head = head.map(|n| n as i32).into_iter();
        bytes.extend(
            head.chain([w.threads as i32, 1 + i32::from(w.wide), w.keep, w.local as i32])
                .flat_map(i32::to_le_bytes),
        );
        let words = 4 << u32::from(w.wide);
        bytes.extend(w.ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(words)));
    }
    let Some(words) = run("routes", ROUTES, &bytes) else {
        return skip(Need::Program("c++"), "no C++ compiler");
    };
    let mut words = words.into_iter();
    let guard = 0xdead_beef_u32 as i32;
    let (mut tables, mut outside, mut twice, mut many, mut beyond, mut dropped) =
        (0, 0, 0, 0, 0, 0);
    let (mut padded, mut near) = (0, 0);
    for (i, w) in worlds.iter().enumerate() {
        let most = w.tokens.div_ceil(w.ranks);
        let said: Vec<i32> = words.by_ref().take(5).collect();
        let id = i64::from(said[4]) << 32 | i64::from(said[3] as u32);
        let space = w.ranks * most.next_multiple_of(16);
        let nodes = w.ranks.checked_div(w.local).unwrap_or(1);
        let (parts, wide) = (most.div_ceil(256).max(1), most.next_multiple_of(16).min(256));
        let sizes = [
            w.experts.div_ceil(w.ranks),
            w.blocks * 128,
            2 * nodes * most * w.slots,
            nodes * most * w.slots,
            space,
            w.blocks * 128,
            1,
            w.ranks * parts * nodes,
            parts * nodes * wide,
            w.ranks * parts * wide,
        ];
        let found = sizes.map(|n| words.by_ref().take(n + 4).collect::<Vec<i32>>());
        for t in &found {
            let n = t.len();
            assert_eq!([t[0], t[1], t[n - 2], t[n - 1]], [guard; 4], "{i}");
        }
        let ranks = w.ranks;
        let narrow = |id: &i64| i32::try_from(*id).unwrap_or(-2);
        let ids: Vec<i32> = w.ids.iter().map(narrow).collect();
        let (experts, keep) = (w.experts as i32, w.keep);
        let (slots, local) = (w.slots, w.local);
        let routing = Routes { ids: &ids, slots, experts, ranks, rows: 128, keep, local };
        match routing.check(w.blocks) {
            Ok(()) => {
                assert_eq!(said[0], 0, "{i}: {said:?} {:?}", w.ids);
                let parts = [
                    RoutePart::Counts,
                    RoutePart::Sources,
                    RoutePart::Places,
                    RoutePart::Kept,
                    RoutePart::Wanted,
                    RoutePart::Slots,
                    RoutePart::Dropped,
                    RoutePart::Crossing,
                    RoutePart::Leaving,
                    RoutePart::Coming,
                ];
                // Entries of tokens that there are; others nobody writes.
                let of = |node: usize| match local {
                    0 => w.rank,
                    _ => node * local + w.rank % local,
                };
                let own = |i: usize| i % most < w.tokens.saturating_sub(of(i / most) * most);
                let written = |part: RoutePart, i: usize| match part {
                    RoutePart::Places => own(i / (2 * slots)),
                    RoutePart::Kept => own(i / slots),
                    RoutePart::Dropped => keep > 0,
                    RoutePart::Crossing | RoutePart::Leaving | RoutePart::Coming => local > 0,
                    _ => true,
                };
                dropped += i32::from(keep > 0 && found[6][2] > 0);
                near += i32::from(local > 0 && found[3].contains(&0) && found[3].contains(&1));
                padded += i32::from(ids.contains(&-1));
                for ((part, n), found) in parts.into_iter().zip(sizes).zip(&found) {
                    let table = routing.table(part, w.rank, n);
                    for (at, (found, wanted)) in found[2..].iter().zip(table).enumerate() {
                        let wanted = if written(part, at) { wanted } else { guard };
                        assert_eq!(*found, wanted, "{i}: {part} {at}");
                    }
                }
                tables += 1;
            }
            Err(RouteError::Expert { token, expert, .. }) => {
                let of = |id: &&i64| narrow(id) == expert;
                let found = w.ids[token * w.slots..][..w.slots].iter().find(of);
                assert_eq!(
                    (said[0], said[2], Some(&id)),
                    (9, token as i32, found),
                    "{i}: {:?}",
                    w.ids
                );
                outside += 1;
                beyond += i32::from(i32::try_from(id).is_err());
            }
            Err(RouteError::Twice { token, expert }) => {
                assert_eq!(said[..3], [10, expert, token as i32], "{i}: {:?}", w.ids);
                twice += 1;
            }
            Err(RouteError::Blocks(_)) => {
                assert!(said[0] == 8 && said[1] > w.blocks as i32, "{i}: {said:?}");
                many += 1;
            }
            Err(RouteError::Documents(_)) => panic!("{i}: ids are no documents"),
        }
    }
    assert!(words.next().is_none());
    let all = format!(
        "{tables} tables, {outside} outside, {twice} twice, {many} too many, {beyond} beyond 32 bits, {dropped} drop, {padded} padded, {near} of a node"
    );
    assert!(
        [
            (tables, 8000),
            (outside, 300),
            (twice, 100),
            (many, 10),
            (beyond, 100),
            (dropped, 500),
            (padded, 3000)
        ]
        .iter()
        .all(|(found, of_all)| *found > of_all * n as i32 / 10_000),
        "{all}"
    );
}

/// Of documents that a launch may have, and of those that it may not: these end it, and nothing is written beside the tables.
#[test]
fn what_documents_meet() {
    let mut rng = SmallRng::seed_from_u64(54);
    let (mut bytes, mut cases) = (Vec::new(), Vec::new());
    for i in 0..4000 {
        let (tokens, places) = (rng.random_range(1..100i32), rng.random_range(1..9i32));
        let count = places * rng.random_range(1..3);
        let rows = (tokens + count - 1) / count;
        let side = [Side::Queries, Side::Keys][rng.random_range(0..2)];
        let window = rng.random_range(1..40);
        let mask = [Mask::Full, Mask::Causal, Mask::Window(window)][rng.random_range(0..3)];
        let mut begins: Vec<i32> =
            (0..rng.random_range(1..12)).map(|_| rng.random_range(0..=tokens)).collect();
        begins[0] = 0;
        begins.sort_unstable();
        if i % 8 == 0 {
            let (at, most) = (rng.random_range(0..begins.len()), 2 * tokens);
            begins[at] = rng.random_range(-9..most);
        }
        let threads = [32, 256][rng.random_range(0..2)];
        let window = mask.window().unwrap_or(0) as i32;
        let head = [begins.len() as i32, tokens, rows, places, count];
        let mask_of =
            [i32::from(side == Side::Keys), i32::from(mask != Mask::Full), window, threads];
        bytes.extend(head.iter().chain(&mask_of).chain(&begins).flat_map(|x| x.to_le_bytes()));
        cases.push((begins, Parts { tokens, rows, count, places }, side, mask));
    }
    let Some(found) = run("documents", DOCUMENTS, &bytes) else {
        return skip(Need::Program("c++"), "no C++ compiler");
    };
    let (mut words, mut wrong) = (&found[..], 0);
    let mut take = |n: usize| {
        let (own, rest) = words.split_at(n);
        words = rest;
        own
    };
    let guard = [0xdeadbeefu32 as i32; 2];
    for (begins, parts, side, mask) in cases {
        let place = format!("{begins:?} {parts:?} {side} {mask}");
        let fault = take(1)[0];
        let bounds = take(2 * parts.tokens as usize + 4);
        let meets = take((parts.places * parts.count) as usize + 4);
        for table in [bounds, meets] {
            assert_eq!([&table[..2], &table[table.len() - 2..]], [&guard, &guard], "{place}");
        }
        if check_documents(&begins, parts.tokens).is_err() {
            assert_ne!(fault, 0, "{place}");
            wrong += 1;
            continue;
        }
        assert_eq!(fault, 0, "{place}");
        let all = (0, parts.tokens as usize);
        let want = bounds_table(&begins, all, parts.tokens, (side, mask)).expect("documents");
        assert_eq!(&bounds[2..bounds.len() - 2], want, "{place}");
        let want = meets_table(&begins, parts, side, mask);
        assert_eq!(&meets[2..meets.len() - 2], want, "{place}");
    }
    assert!(wrong > 100, "{wrong}");
}
