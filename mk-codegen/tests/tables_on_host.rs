//! The device's code that fills tables, compiled for the host, where the lanes of a warp take turns: as the Rust builder, on 10,000 routings.

use mk_codegen::{
    emit::library,
    ir::{BlocksError, TokensError, block_table, group_counts, row_tokens},
};
use mk_skip::{Need, skip};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{env, fs, process::Command};

const MAIN: &str = r#"
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
static std::jmp_buf to_warp, to_lane[32];
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
static int __popc(u32 v) { return __builtin_popcount(v); }
static int __ffs(u32 v) { return __builtin_ffs(static_cast<int>(v)); }
static u32 min(u32 a, u32 b) { return a < b ? a : b; }
static u32 ld_u32(const void* p) { return *static_cast<const u32*>(p); }
static void st_u32(void* p, u32 x) { *static_cast<u32*>(p) = x; }
static void st_u32x2(void* p, u32 x, u32 y) { static_cast<u32*>(p)[0] = x, static_cast<u32*>(p)[1] = y; }
constexpr u32 kNoPeer = ~0u;
KINDS
struct Fault { FaultKind kind; u32 edge, expected, seen, tile, peer; u64 waited_ns; u32 word; };
struct Context {};
static Fault fault;
static void give_up(const Context&, const Fault& f) { fault = f; }
CODE

static BlocksTask work;
static CountsTask counts_work;
static TokensTask tokens_work;
static enum { kBlocks, kCounts, kTokens } leaf = kBlocks;
static u32 first_thread, threads;
static void run_lane() {
  if (leaf == kBlocks) tabulate_blocks(Context{}, work, first_thread + lane, threads);
  if (leaf == kCounts) count_rows(Context{}, counts_work, first_thread + lane, threads);
  if (leaf == kTokens) list_tokens(Context{}, tokens_work, first_thread + lane, threads);
  done[lane] = true;
  std::longjmp(to_warp, 1);
}
static void warp() {
  for (u32 l = 0; l < 32; ++l) {
    stacks[l].resize(64 << 10);
    getcontext(&begin_lane[l]);
    begin_lane[l].uc_stack.ss_sp = stacks[l].data();
    begin_lane[l].uc_stack.ss_size = stacks[l].size();
    makecontext(&begin_lane[l], run_lane, 0);
    done[l] = false, turn[l] = 0;
  }
  for (volatile bool begun = false, more = true; more; begun = true) {
    more = false;
    for (lane = 0; lane < 32; ++lane) {
      if (done[lane]) continue;
      if (setjmp(to_warp) == 0) {
        if (begun) std::longjmp(to_lane[lane], 1);
        setcontext(&begin_lane[lane]);
      }
      more = more || !done[lane];
    }
  }
}

static void run() {
  for (first_thread = 0; first_thread < threads; first_thread += 32) warp();
}

// Of each routing: tokens, experts of each, all experts, blocks, rows of a block, threads, what tokens name; then the fault's kind, what was
// seen and of which token, and between guards the rows of experts and the tokens of rows.
static int routes(std::FILE* in) {
  u32 head[6];
  while (std::fread(head, 4, 6, in) == 6) {
    const u32 tokens = head[0], slots = head[1], experts = head[2], n = head[3], rows = head[4];
    threads = head[5];
    std::vector<u32> ids(tokens * slots), counts(experts + 2, 0xdeadbeef), blocks(2 * n), list(n * rows + 2, 0xdeadbeef);
    if (std::fread(ids.data(), 4, ids.size(), in) != ids.size()) return 1;
    const auto at = [](const std::vector<u32>& v, u32 i) { return reinterpret_cast<u64>(v.data() + i); };
    fault = Fault{};
    leaf = kCounts;
    for (u32 first = 0; first < experts; first += 8) {
      counts_work = CountsTask{0, 0, at(ids, 0), at(counts, 1 + first), tokens, slots, experts, first, min(experts - first, 8)};
      run();
    }
    const bool counted = fault.kind == FaultKind{};
    leaf = kBlocks;
    work = BlocksTask{0, 0, at(counts, 1), at(blocks, 0), experts, n, rows};
    if (counted) run();
    leaf = kTokens;
    for (u32 block = 0; fault.kind == FaultKind{} && block < n; ++block) {
      tokens_work = TokensTask{0, 0, at(ids, 0), at(blocks, 0), at(list, 1 + block * rows), tokens, slots, block, rows};
      run();
    }
    const u32 said[3] = {static_cast<u32>(fault.kind), fault.seen, fault.tile};
    std::fwrite(said, 4, 3, stdout);
    std::fwrite(counts.data(), 4, counts.size(), stdout);
    std::fwrite(list.data(), 4, list.size(), stdout);
  }
  return 0;
}

// Of each routing: groups, blocks, rows of a block, threads, counts; then the fault's kind, group or blocks, and the table between guards.
int main(int argc, char** argv) {
  std::FILE* in = std::fopen(argv[1], "rb");
  if (argc > 2) return routes(in);
  u32 head[4];
  while (std::fread(head, 4, 4, in) == 4) {
    std::vector<i32> counts(head[0]);
    if (std::fread(counts.data(), 4, head[0], in) != head[0]) return 1;
    std::vector<u32> table(2 * head[1] + 4, 0xdeadbeef);
    fault = Fault{};
    threads = head[3];
    work = BlocksTask{0, 0, reinterpret_cast<u64>(counts.data()), reinterpret_cast<u64>(table.data() + 2), head[0], head[1], head[2]};
    run();
    const u32 said[3] = {static_cast<u32>(fault.kind), fault.seen, fault.tile};
    std::fwrite(said, 4, 3, stdout);
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

/// What the program says of these bytes, as words; `None` without a compiler.
fn run(bytes: &[u8], routes: bool) -> Option<Vec<i32>> {
    let library = library::text();
    let kinds = between(&library, "enum class FaultKind", "\n");
    let code = between(
        &library,
        "struct BlocksTask {",
        "// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.\ntemplate <u32 kThreads, u32 kBarrier, class Edges, class Hooks>\nMK_DEVICE void tabulate_tasks",
    );
    let routing = between(&library, "struct CountsTask {", "struct GatherTask {");
    let code = format!("{code}{routing}");
    let folder = format!("mk-tables-on-host-{}-{routes}", std::process::id());
    let folder = env::temp_dir().join(folder);
    fs::create_dir_all(&folder).expect("a folder");
    let [source, program, input] = ["main.cpp", "main", "routings"].map(|name| folder.join(name));
    fs::write(&source, MAIN.replace("KINDS", kinds).replace("CODE", &code)).expect("writable");
    let mut compile = Command::new("c++");
    compile.args(["-std=c++20", "-O1", "-w", "-o"]).args([&program, &source]);
    let Ok(built) = compile.output() else {
        fs::remove_dir_all(&folder).expect("its folder goes");
        skip(Need::Program("c++"), "no C++ compiler");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::write(&input, bytes).expect("writable");
    let ran = Command::new(&program).arg(&input).args(routes.then_some("routes")).output();
    let ran = ran.expect("runs");
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
    let Some(words) = run(&bytes, false) else { return };
    let mut words = words.into_iter();
    let (mut tables, mut negative, mut many) = (0, 0, 0);
    let guard = 0xdead_beef_u32 as i32;
    for (i, r) in routings.iter().enumerate() {
        let said: Vec<i32> = words.by_ref().take(3).collect();
        let table: Vec<i32> = words.by_ref().take(2 * r.blocks + 4).collect();
        let (inner, n) = (&table[2..2 * r.blocks + 2], table.len());
        assert_eq!([table[0], table[1], table[n - 2], table[n - 1]], [guard; 4], "{i}");
        match block_table(&r.counts, r.rows, r.blocks) {
            Ok(want) => {
                assert_eq!((said[0], inner), (0, &want[..]), "{i}: {:?}", r.counts);
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

/// Tokens that name experts, in some launch.
struct Route {
    tokens: usize,
    slots: usize,
    experts: usize,
    blocks: usize,
    rows: i32,
    threads: u32,
    ids: Vec<i32>,
}

fn routes(n: usize) -> Vec<Route> {
    let mut rng = SmallRng::seed_from_u64(197);
    let route = |_| {
        let slots = [1, 1, 2, 2, 3, 8][rng.random_range(0..6)];
        let experts = slots + rng.random_range(0..if slots == 8 { 30 } else { 12 });
        let tokens = rng.random_range(1..100usize);
        let rows = [8, 64, 128][rng.random_range(0..3)];
        let most = tokens * slots + experts * (rows as usize - 1);
        let blocks = most.div_ceil(rows as usize) - rng.random_range(0..20) / 19;
        // One of so many experts at first: others where a token needs them.
        let open = [1, slots, experts][rng.random_range(0..3)].max(1);
        let mut ids: Vec<i32> = Vec::new();
        for _ in 0..tokens {
            let mut mine: Vec<i32> = Vec::new();
            while mine.len() < slots {
                let open = if mine.len() >= open { experts } else { open };
                let e = rng.random_range(0..open) as i32;
                if !mine.contains(&e) {
                    mine.push(e);
                }
            }
            ids.extend(mine);
        }
        let at = rng.random_range(0..ids.len());
        match rng.random_range(0..30) {
            0 => ids[at] = -1 - rng.random_range(0..9),
            1 => ids[at] = experts as i32 + rng.random_range(0..9),
            2 if slots > 1 => ids[at / slots * slots] = ids[at / slots * slots + 1],
            _ => {}
        }
        let threads = [32, 32, 32, 32, 32, 32, 32, 32, 64, 256][rng.random_range(0..10)];
        Route { tokens, slots, experts, blocks: blocks.max(1), rows, threads, ids }
    };
    (0..n).map(route).collect()
}

#[test]
fn tokens_of_experts() {
    let routes = routes(10_000);
    let mut bytes = Vec::new();
    for r in &routes {
        let head = [r.tokens, r.slots, r.experts, r.blocks].map(|n| n as i32);
        let head = head.into_iter().chain([r.rows, r.threads as i32]);
        bytes.extend(head.chain(r.ids.iter().copied()).flat_map(i32::to_le_bytes));
    }
    let Some(words) = run(&bytes, true) else { return };
    let mut words = words.into_iter();
    let (mut tables, mut outside, mut twice, mut many) = (0, 0, 0, 0);
    let guard = 0xdead_beef_u32 as i32;
    for (i, r) in routes.iter().enumerate() {
        let said: Vec<i32> = words.by_ref().take(3).collect();
        let counts: Vec<i32> = words.by_ref().take(r.experts + 2).collect();
        let list: Vec<i32> = words.by_ref().take(r.blocks * r.rows as usize + 2).collect();
        for table in [&counts, &list] {
            assert_eq!((table[0], table[table.len() - 1]), (guard, guard), "{i}");
        }
        let named = |token: i32| &r.ids[token as usize * r.slots..][..r.slots];
        match group_counts(&r.ids, r.slots, r.experts) {
            Ok(want) => {
                assert_eq!(counts[1..=r.experts], want, "{i}: {:?}", r.ids);
                let Ok(blocks) = block_table(&want, r.rows, r.blocks) else {
                    assert_eq!(said[0], 8, "{i}");
                    many += 1;
                    continue;
                };
                let want = row_tokens(&r.ids, r.slots, &blocks, r.rows as usize);
                assert_eq!((said[0], &list[1..list.len() - 1]), (0, &want[..]), "{i}: {:?}", r.ids);
                tables += 1;
            }
            Err(TokensError::Outside { .. }) => {
                let there = (0..r.experts as i32).contains(&said[1]);
                assert!(
                    said[0] == 9 && !there && named(said[2]).contains(&said[1]),
                    "{i}: {said:?}"
                );
                outside += 1;
            }
            Err(TokensError::Twice { .. }) => {
                let times = named(said[2]).iter().filter(|e| **e == said[1]).count();
                assert!(said[0] == 10 && times > 1, "{i}: {said:?}");
                twice += 1;
            }
        }
    }
    assert!(tables > 8000 && outside > 300 && twice > 50, "{tables} {outside} {twice} {many}");
}
