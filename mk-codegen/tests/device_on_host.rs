//! Parts of the device library that are plain C++, run here: how threads go through rows, agents through a ring, workers through tasks
//! that are for whoever is free, and what is done to results.

use mk_codegen::emit::library;
use mk_skip::{Need, skip};
use std::{env, fs, process::Command};

/// The definition of a struct of the library, with its template line.
fn definition<'a>(library: &'a str, head: &str) -> &'a str {
    let begin = library.find(head).unwrap_or_else(|| panic!("`{head}` is in the library"));
    let length = library[begin..].find("\n};\n").expect("it ends") + "\n};\n".len();
    &library[begin..begin + length]
}

/// The text of a function of the library, with its template line.
fn function<'a>(library: &'a str, head: &str) -> &'a str {
    let begin = library.find(head).unwrap_or_else(|| panic!("`{head}` is in the library"));
    let length = library[begin..].find("\n}\n").expect("it ends") + "\n}\n".len();
    &library[begin..begin + length]
}

const MAIN: &str = r#"
// Every vector of every row belongs to one step of one thread.
template <u32 kBytes>
static int walk(u32 threads, u32 rows, u32 vectors, u32 most_steps) {
  std::vector<int> seen(static_cast<size_t>(rows) * vectors);
  u32 most = 0;
  for (u32 thread = 0; thread < threads; ++thread) {
    RowWalk at = RowWalk::of<kBytes>(thread, threads, rows, vectors);
    u32 steps = 0;
    for (; at.row < rows; ++steps) {
      if (at.vector >= vectors) return printf("%u bytes, %u rows of %u: thread %u is at %u\n", kBytes, rows, vectors, thread, at.vector), 1;
      ++seen[static_cast<size_t>(at.row) * vectors + at.vector];
      at.forget();
      at.advance();
    }
    most = steps > most ? steps : most;
  }
  for (int n : seen) {
    if (n != 1) return printf("%u bytes, %u rows of %u: a vector is taken %d times\n", kBytes, rows, vectors, n), 1;
  }
  if (most > most_steps) return printf("%u bytes, %u rows of %u: %u steps, not %u\n", kBytes, rows, vectors, most, most_steps), 1;
  return 0;
}

// Past so many steps at once is past as many steps.
template <u32 kStages>
static int ring() {
  for (u32 begin = 0; begin < 2 * kStages; ++begin) {
    for (u32 steps = 1; steps < 5 * kStages; ++steps) {
      RingCursor<kStages> one, all;
      for (u32 i = 0; i < begin; ++i) one.advance(), all.advance();
      u32 last = 0;
      for (u32 i = 0; i < steps; ++i) last = one.stage, one.advance();
      all.skip(steps);
      if (one.stage != all.stage || one.phase != all.phase || all.previous_stage() != last) {
        return printf("%u stages, %u steps from %u: %u and %u\n", kStages, steps, begin, one.stage, all.stage), 1;
      }
    }
  }
  return 0;
}

// What a dynamic schedule needs of a GPU, for one thread at a time.
static u32 counter;
static std::map<u32, u32> shared_words;
static u32 lane = 0;
static u32 lane_index() { return lane; }
static u32 atom_add_gpu(u32* p, u32 n) { u32 old = *p; *p += n; return old; }
static void st_shared(u32 at, u32 v) { shared_words[at] = v; }
static u32 ld_shared(u32 at) { return shared_words.at(at); }
static u32 __shfl_sync(u32, u32 v, int) { return v; }
static void __syncwarp() {}
static u32 min(u32 a, u32 b) { return a < b ? a : b; }
constexpr u32 kNotRead = ~0u;
struct Context {
  struct { u32 rank = 0; } header;
  u32 past, launches;
  u32 read_past() const { return launches; }
  u32 taken(u32 worker) const { return worker; }
  u32* signal(u32, u64) const { return &counter; }
};
// Tasks from 100 on, for so many CTAs of so many workers each.
struct Queue {
  u32 n, ctas, teams, cta;
  static constexpr bool kDynamic = true;
  u32 begin() const { return 100; }
  u32 first() const { return 100 + cta; }
  u32 end() const { return 100 + n; }
  u32 stride() const { return ctas; }
  u32 tasks() const { return n; }
  u32 workers() const { return ctas * teams; }
  u64 taken() const { return 0; }
  u32 decode(u32 t) const { return t; }
};
TURNS
// Tasks that come in groups, of which a launch gives the first ones rows; whose signals the others are is counted.
struct GemmTile { u32 task; };
struct RaggedQueue : Queue {
  u32 groups, group;
  std::map<u32, u32>* signals;
  bool await_tables(const Context&) const { return true; }
  bool has_rows(u32 t) const { return (t - 100) / group < groups; }
  u32 with_rows() const { return min(groups * group, n); }
  GemmTile decode(u32 t) const { return {t}; }
  void before_load(const Context&, const GemmTile&) const {}
  void before_store(const Context&, const GemmTile&) const {}
  void after_store(const Context&, const GemmTile& tile) const { ++(*signals)[tile.task]; }
};
LEFT_OVER

static u32 random_state = 1;
static u32 random_below(u32 n) {
  random_state = random_state * 1664525u + 1013904223u;
  return (random_state >> 8) % n;
}
// Each task once.
static int all_once(const std::map<u32, u32>& seen, u32 tasks) {
  for (u32 t = 0; t < tasks; ++t) {
    if (!seen.count(100 + t) || seen.at(100 + t) != 1) return printf("task %u of %u is not taken once\n", t, tasks), 1;
  }
  return seen.size() == tasks ? 0 : (printf("%zu tasks, not %u\n", seen.size(), tasks), 1);
}

// In every launch every task is for one worker, each worker's in ascending order, and all of its threads know which.
static int queue(u32 tasks, u32 ctas, u32 teams, u32 past) {
  counter = past * tasks;
  for (u32 launch = 0; launch < 5; ++launch, ++past) {
    const Context ctx{{}, past, past};
    std::vector<Queue> hooks;
    for (u32 c = 0; c < ctas; ++c) hooks.push_back(Queue{tasks, ctas, teams, c});
    std::vector<Turns<Queue>> workers;
    for (u32 w = 0; w < ctas * teams; ++w) workers.emplace_back(ctx, hooks[w % ctas], w / ctas, teams);
    // Every worker has a place of its own in shared memory: CTAs do not share it.
    for (u32 w = 0; w < workers.size(); ++w) workers[w].slot = w;
    std::vector<u32> busy, last(workers.size(), 0);
    for (u32 w = 0; w < workers.size(); ++w) busy.push_back(w);
    std::map<u32, u32> seen;
    while (!busy.empty()) {
      const u32 at = random_below(busy.size()), w = busy[at];
      u32 first = 0, other = 0, waited = 0, met = 0;
      auto wait = [&](u32 t) { waited = t; };
      auto sync = [&] { ++met; };
      const bool more = workers[w].begin(first, 0, wait, sync), same = workers[w].begin(other, 64, wait, sync);
      // Behind a task they meet at its end, else here: nobody overwrites what another has not read.
      if (met != (more ? 2 : 4)) return printf("two threads meet %u times\n", met), 1;
      if (more != same || (more && (first != other || waited != first))) return printf("threads differ: %u and %u\n", first, other), 1;
      if (!more) { busy.erase(busy.begin() + at); continue; }
      if (first <= last[w]) return printf("%u comes after %u\n", first, last[w]), 1;
      last[w] = first;
      ++seen[first];
    }
    if (all_once(seen, tasks)) return 1;
  }
  return 0;
}

// A CTA's tiles: the loader takes them, and both readers are told of the same ones, at most so many behind.
struct Bar { u32 arrivals, count = 0, phase = 0; };
static std::vector<std::map<u32, Bar>> bars;
static u32 cta;
static bool mbarrier_test_wait(u32 bar, u32 parity) { return bars[cta].at(bar).phase % 2 != parity; }
static bool blocked;
template <u32 kEdge> static void mbarrier_wait(u32 bar, u32 parity) { blocked |= !mbarrier_test_wait(bar, parity); }
template <u32 kEdge> static void mbarrier_arrive(u32 bar) {
  Bar& b = bars[cta].at(bar);
  if (++b.count == b.arrivals) b.count = 0, ++b.phase;
}
constexpr u32 kWarpgroupWarps = 4;
SLOTS
typedef RingCursor<kTileSlots> TileCursor;
struct Edges { static constexpr u32 tile_full = 1, tile_empty = 2; };
struct Config {};
template <class Config> struct GemmSmem {
  u32 tile_index(u32 s) const { return 1000 * cta + s; }
  u32 tile_full(u32 s) const { return 10 + s; }
  u32 tile_empty(u32 s) const { return 20 + s; }
};
TILES

// Where `group` is not 0, some of the tasks of each launch are left over.
template <class Q = Queue>
static int tiles(u32 n, u32 ctas, u32 past, u32 consumers = 2, u32 group = 0) {
  counter = past * n;
  bars.assign(ctas, {});
  std::vector<TileCursor> slots(ctas * 3);
  for (auto& b : bars) for (u32 s = 0; s < kTileSlots; ++s) b[10 + s] = Bar{1}, b[20 + s] = Bar{tile_readers(consumers)};
  const GemmSmem<Config> smem;
  for (u32 launch = 0; launch < 5; ++launch, ++past) {
    std::map<u32, u32> seen;
    std::vector<Q> hooks;
    const u32 all = group == 0 ? 0 : (n + group - 1) / group, groups = launch == 0 ? 0 : launch == 1 ? all : random_below(all + 1);
    for (u32 c = 0; c < ctas; ++c) {
      const Queue queue{n, ctas, 1, c};
      if constexpr (std::is_same_v<Q, Queue>) hooks.push_back(queue);
      else hooks.push_back(Q{queue, groups, group, &seen});
    }
    // How far each agent is: what the loader took, and what readers were told.
    std::vector<std::vector<u32>> told(ctas * 3);
    std::vector<LoaderTiles<GemmSmem<Config>, Edges, Q>*> loaders(ctas);
    std::vector<u32> left;
    for (u32 a = 0; a < ctas * 3; ++a) left.push_back(a);
    for (u32 turn = 0; !left.empty(); ++turn) {
      if (turn > 100000) return printf("%zu agents wait for ever\n", left.size()), 1;
      const u32 at = random_below(left.size()), a = left[at];
      cta = a / 3;
      const Context ctx{{}, launch % 2 ? past : kNotRead, past};
      const Q& q = hooks[cta];
      TileCursor& slot = slots[a];
      if (a % 3 == 0) {
        // It may go on if its next slot has been given back by both.
        if (!mbarrier_test_wait(smem.tile_empty(slot.stage), slot.phase ^ 1)) continue;
        if (!loaders[cta]) loaders[cta] = new LoaderTiles<GemmSmem<Config>, Edges, Q>(ctx, smem, q, slot);
        else loaders[cta]->advance();
        told[a].push_back(loaders[cta]->t);
        if (loaders[cta]->more()) ++seen[loaders[cta]->t], loaders[cta]->ask();
        else delete loaders[cta], left.erase(left.begin() + at);
      } else {
        if (!mbarrier_test_wait(smem.tile_full(slot.stage), slot.phase)) continue;
        // The storer is one lane; the warps that multiply come one after the other here.
        const bool lane = a % 3 == 1;
        TileCursor next = slot;
        u32 tile = 0;
        bool last = false;
        for (u32 warp = 0; warp < (lane ? 1 : consumers * kWarpgroupWarps); ++warp) {
          next = slot;
          if (lane) {
            ReaderTiles<GemmSmem<Config>, Edges, Q, false> reader(smem, q, next);
            tile = reader.t, last = reader.last();
          } else {
            ReaderTiles<GemmSmem<Config>, Edges, Q, true> reader(smem, q, next);
            tile = reader.t, last = reader.last();
          }
        }
        slot = next;
        told[a].push_back(tile);
        if (last && told[a - a % 3].back() < q.end()) return printf("a last tile that is none\n"), 1;
        if (tile >= q.end()) left.erase(left.begin() + at);
      }
      if (blocked) return printf("an agent waits\n"), 1;
    }
    if constexpr (!std::is_same_v<Q, Queue>) {
      if (seen.size() != hooks[0].with_rows()) return printf("%zu tasks are taken, not %u\n", seen.size(), hooks[0].with_rows()), 1;
      for (const Q& q : hooks) for (lane = 0; lane < 32; ++lane) gemm_left_over(Context{{}, past, past}, q);
      lane = 0;
    }
    if (all_once(seen, n)) return 1;
    // The next launch counts from here.
    if (counter != (past + 1) * n) return printf("%u are counted, not %u\n", counter, (past + 1) * n), 1;
    for (u32 a = 0; a < ctas * 3; ++a) {
      if (told[a] != told[a - a % 3]) return printf("agent %u was told of other tiles\n", a), 1;
    }
  }
  return 0;
}

int main() {
  int wrong = 0;
  for (u32 past : {0u, 2u, ~0u - 2}) {
    wrong += queue(0, 1, 1, past) + queue(1, 5, 1, past) + queue(7, 3, 1, past) + queue(512, 132, 2, past) + queue(512, 66, 1, past);
    for (u32 consumers : {1u, 3u}) wrong += tiles(7, 3, past, consumers) + tiles(200, 9, past, consumers);
    wrong += tiles(0, 2, past) + tiles(1, 5, past) + tiles(7, 3, past) + tiles(200, 9, past) + tiles(9, 9, past);
    for (u32 group : {1u, 3u, 8u}) wrong += tiles<RaggedQueue>(8, 3, past, 2, group) + tiles<RaggedQueue>(200, 9, past, 2, group) + tiles<RaggedQueue>(5, 7, past, 2, group);
  }
  wrong += ring<2>() + ring<3>() + ring<4>() + ring<7>();
  const u32 any = ~0u;
  for (u32 threads : {128u, 256u}) {
    for (u32 rows : {0u, 1u, 3u, 8u, 31u, 64u}) {
      for (u32 vectors : {0u, 1u, 5u, 8u, 12u, 16u, 24u, 31u, 32u, 33u, 48u, 64u, 100u, 127u, 128u, 129u, 1001u}) {
        wrong += walk<16>(threads, rows, vectors, any) + walk<4>(threads, rows, vectors, any) + walk<2>(threads, rows, vectors, any);
      }
    }
  }
  // Tiles of 64 rows and 128, 192 and 256 columns: no lane idles.
  for (u32 vectors : {16u, 24u, 32u}) wrong += walk<16>(128, 64, vectors, vectors / 2) + walk<16>(256, 64, vectors, vectors / 4);
  return wrong != 0;
}
"#;

#[test]
fn rows_rings_and_tasks_are_walked_whole() {
    let library = library::text();
    let structs = [
        definition(&library, "template <u32 kStages>\nstruct RingCursor {"),
        definition(&library, "struct RowWalk {"),
    ];
    let head = "#include <cstdint>\n#include <cstdio>\n#include <map>\n#include <type_traits>\n#include <vector>\ntypedef uint32_t u32;\ntypedef uint64_t u64;\n#define MK_DEVICE inline\n";
    let dynamic = |head: &str, name: &str| {
        let generic = format!("{head}\nstruct {name};\n");
        let of = definition(&library, &format!("struct {name}<"));
        // Its own template line is that of the general form without the last parameter.
        let own = head.replace(", bool kDynamic = Hooks::kDynamic", "");
        [generic, format!("{own}\n{of}")].concat()
    };
    let take = ["count_tasks", "take_task"]
        .map(|name| function(&library, &format!("template <class Hooks>\nMK_DEVICE u32 {name}(")))
        .concat();
    let left_over = function(&library, "template <class Hooks>\nMK_DEVICE void gemm_left_over(");
    let turns = dynamic("template <class Hooks, bool kDynamic = Hooks::kDynamic>", "Turns");
    let tiles = [
        dynamic(
            "template <class Smem, class Edges, class Hooks, bool kDynamic = Hooks::kDynamic>",
            "LoaderTiles",
        ),
        dynamic(
            "template <class Smem, class Edges, class Hooks, bool kWarps, bool kDynamic = Hooks::kDynamic>",
            "ReaderTiles",
        ),
    ];
    let main = MAIN.replace("TURNS", &[&take, &turns].map(String::as_str).concat());
    let main = main.replace("LEFT_OVER", left_over).replace("TILES", &tiles.concat());
    let constants = ["constexpr u32 kTileSlots", "constexpr u32 tile_readers"];
    let line =
        |head: &str| library.lines().find(|l| l.starts_with(head)).expect("there").to_string();
    let main = main.replace("SLOTS", &constants.map(line).join("\n"));
    let text = [head, structs[0], structs[1], &main].concat();
    run("rows_rings_and_tasks_are_walked_whole", &text);
}

/// Compiles a program and runs it, which must end with 0.
fn run(test: &str, text: &str) {
    let folder = env::temp_dir().join(format!("mk-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, program) = (folder.join("main.cpp"), folder.join("main"));
    fs::write(&source, text).expect("writable");
    let built = Command::new("c++")
        .args(["-std=c++20", "-O1", "-pthread", "-o"])
        .args([&program, &source])
        .output();
    let Ok(built) = built else {
        fs::remove_dir_all(&folder).expect("its folder goes");
        return skip(Need::Program("c++"), "no C++ compiler");
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().expect("runs");
    fs::remove_dir_all(&folder).expect("its folder goes");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

const ELEMENTWISE: &str = r#"
#include <cmath>
#include <initializer_list>
#include <cstdio>
#define MK_DEVICE inline
#define __fdividef(a, b) ((a) / (b))
#define __expf expf
OPERATIONS
static int wrong = 0;
static void near(const char* op, float x, float got, double want) {
  if (!(std::fabs(got - want) <= 2e-7 + 1e-5 * std::fabs(want))) printf("%s(%g) is %g, not %g\n", op, x, got, want), wrong = 1;
}
int main() {
  for (float x = -9.0f; x <= 9.0f; x += 0.01f) {
    const double d = x;
    near("relu", x, relu(x), d < 0 ? 0 : d);
    near("silu", x, silu(x), d / (1 + exp(-d)));
    near("gelu_erf", x, gelu_erf(x), d * 0.5 * erfc(-d * M_SQRT1_2));
    near("gelu_tanh", x, gelu_tanh(x), 0.5 * d * (1 + tanh(sqrt(2 / M_PI) * (d + 0.044715 * d * d * d))));
  }
  // What is no number stays so.
  for (float y : {relu(NAN), silu(NAN), gelu_erf(NAN), gelu_tanh(NAN)}) if (!std::isnan(y)) printf("a NaN is now %g\n", y), wrong = 1;
  if (relu(INFINITY) != INFINITY || relu(-INFINITY) != 0 || gelu_erf(INFINITY) != INFINITY) printf("infinity is not\n"), wrong = 1;
  return wrong;
}
"#;

#[test]
fn elementwise_operations() {
    let library = library::text();
    let begin = library.find("MK_DEVICE float relu(").expect("it is in the library");
    let length = library[begin..].find("// A pair of neighbouring").expect("what follows");
    let text = ELEMENTWISE.replace("OPERATIONS", &library[begin..begin + length]);
    run("elementwise_operations", &text);
}

/// Warps of threads that meet where theirs do.
const GATED_ROWS: &str = r#"
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64; typedef int32_t i32;
#define MK_DEVICE inline
#define __fdividef(a, b) ((a) / (b))
#define __expf expf
enum class Dtype { Bf16, F32 };
enum class Agent { Copier };
constexpr u32 kThreads = 64;
struct Vec16 { u32 x[4]; };
static float from_bf16(u32 bits) { return std::bit_cast<float>(bits << 16); }
static u32 to_bf16(float x) { const u32 b = std::bit_cast<u32>(x); return (b + 0x7fff + (b >> 16 & 1)) >> 16; }
template <Dtype> float unpack_lo(u32 two) { return from_bf16(two & 0xffff); }
template <Dtype> float unpack_hi(u32 two) { return from_bf16(two >> 16); }
template <Dtype> u32 pack2(float lo, float hi) { return to_bf16(lo) | to_bf16(hi) << 16; }
static Vec16 ld_vec16(const void* from) { Vec16 v; memcpy(&v, from, 16); return v; }
static void st_vec16(void* to, const Vec16& v) { memcpy(to, &v, 16); }
template <Dtype k> float load_element(u64 at) {
  if constexpr (k == Dtype::F32) return *reinterpret_cast<float*>(at);
  return from_bf16(*reinterpret_cast<u16*>(at));
}
template <Dtype k> void store_element(u64 at, float x) {
  if constexpr (k == Dtype::F32) *reinterpret_cast<float*>(at) = x;
  else *reinterpret_cast<u16*>(at) = static_cast<u16>(to_bf16(x));
}
struct Warp { std::barrier<> meet{32}; u32 said[32]; };
static Warp warps[kThreads / 32];
static std::barrier<> all{kThreads};
static thread_local u32 own;
template <class T> T told(T value, u32 by) {
  Warp& warp = warps[own / 32];
  warp.said[own % 32] = std::bit_cast<u32>(value);
  warp.meet.arrive_and_wait();
  const T got = std::bit_cast<T>(warp.said[by]);
  warp.meet.arrive_and_wait();
  return got;
}
template <class T> T __shfl_xor_sync(u32, T value, u32 apart) { return told(value, own % 32 ^ apart); }
template <class T> T __shfl_sync(u32, T value, u32 by) { return told(value, by); }
static u32 __ballot_sync(u32, bool said) {
  u32 votes = 0;
  for (u32 lane = 0; lane < 32; ++lane) votes |= told(u32{said}, lane) << lane;
  return votes;
}
static void __syncwarp() { told(0u, 0); }
static u32 __ffs(u32 bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
static u32 min(u32 a, u32 b) { return a < b ? a : b; }
struct Context { bool aborted() const { return false; } };
static void chaos_delay(const Context&, Agent, u32) {}
template <u32, u32, u32> void named_barrier_sync() { all.arrive_and_wait(); }
struct Edges { static constexpr u32 start = 0, done = 1; };
OPERATIONS
ROWS
// Two tasks of 128 rows, of which the second has 37, all of them `kShift` elements behind a multiple of 16 bytes.
constexpr u32 kTasks = 2;
template <u32 kWide, u32 kShift>
struct Hooks {
  static constexpr u32 kRows = 128, kColumns = kWide;
  static constexpr u32 kPitch = (kWide + 7) / 8 * 8;
  std::vector<u16> u, h, dh, a;
  std::vector<float> g, p;
  static u64 place(const std::vector<u16>& of) {
    const u64 at = reinterpret_cast<u64>(of.data());
    return (at + 15) / 16 * 16 + kShift * 2;
  }
  u32 first() const { return 0; }
  u32 end() const { return kTasks; }
  u32 stride() const { return 1; }
  SwigluGradTask decode(u32 t) const { return SwigluGradTask{t, 0}; }
  void before_decode(const Context&, const SwigluGradTask&) const {}
  void before_load(const Context&, const SwigluGradTask&) const {}
  void after_store(const Context&, const SwigluGradTask&) const {}
  static u32 global(const SwigluGradTask& task, u32 row) { return task.task * kRows + row; }
  bool exists(const SwigluGradTask& task, u32 row) const { return task.task == 0 || row < 37; }
  u64 weight(const SwigluGradTask& task, u32 row) const { return reinterpret_cast<u64>(&g[global(task, row)]); }
  u64 of_weight(const SwigluGradTask& task, u32 row) const { return reinterpret_cast<u64>(&p[global(task, row)]); }
  SwigluGradRow row(const SwigluGradTask& task, u32 row) const {
    const u64 r = u64{global(task, row)} * kPitch * 2;
    const u64 half = kPitch * 2;
    return SwigluGradRow{place(u) + r, place(h) + 2 * r, place(h) + 2 * r + half, place(dh) + 2 * r, place(dh) + 2 * r + half, place(a) + r};
  }
};
template <u32 kWide, u32 kShift>
static int run() {
  constexpr u32 kRows = kTasks * 128;
  Hooks<kWide, kShift> hooks;
  const size_t n = size_t{kRows} * hooks.kPitch + 32;
  u32 state = 12345 + kWide + kShift;
  const auto random = [&] { state = state * 1664525 + 1013904223; return static_cast<float>(state >> 8) / 4194304.0f - 2.0f; };
  for (auto* of : {&hooks.u, &hooks.a}) of->assign(n, 0x7fc0);
  for (auto* of : {&hooks.h, &hooks.dh}) of->assign(2 * n, 0x7fc0);
  hooks.g.assign(kRows, NAN), hooks.p.assign(kRows, NAN);
  const SwigluGradTask two[kTasks] = {{0, 0}, {1, 0}};
  for (const auto& task : two) {
    for (u32 r = 0; r < 128; ++r) {
      if (!hooks.exists(task, r)) continue;
      const auto at = hooks.row(task, r);
      for (u64 from : {at.gradients, at.gates, at.ups}) for (u32 c = 0; c < kWide; ++c) store_element<Dtype::Bf16>(from + c * 2, random());
      // A weight of nothing has a gradient, too.
      hooks.g[hooks.global(task, r)] = r % 9 == 0 ? 0.0f : random();
    }
  }
  std::vector<std::thread> threads;
  for (u32 t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      own = t;
      swiglu_grad_rows<Dtype::Bf16, kThreads, 2, Edges>(Context{}, hooks, t);
    });
  }
  for (auto& t : threads) t.join();
  const auto near = [](float got, double want, double scale) { return std::fabs(got - want) <= scale / 250 + 1e-6; };
  for (const auto& task : two) {
    for (u32 r = 0; r < 128; ++r) {
      const auto at = hooks.row(task, r);
      const u32 i = hooks.global(task, r);
      if (!hooks.exists(task, r)) {
        if (!std::isnan(hooks.p[i]) || !std::isnan(load_element<Dtype::Bf16>(at.weighted))) return printf("row %u is written\n", i), 1;
        continue;
      }
      double sum = 0, size = 0;
      for (u32 c = 0; c < kWide; ++c) {
        const auto of = [&](u64 from) { return static_cast<double>(load_element<Dtype::Bf16>(from + c * 2)); };
        const double d = of(at.gradients), x = of(at.gates), up = of(at.ups), g = hooks.g[i], s = 1 / (1 + std::exp(-x));
        const double want[3] = {g * d * up * s * (1 + x * (1 - s)), g * d * x * s, g * x * s * up};
        const u64 got[3] = {at.of_gates, at.of_ups, at.weighted};
        for (u32 k = 0; k < 3; ++k) {
          if (!near(static_cast<float>(of(got[k])), want[k], std::fabs(want[k]))) {
            return printf("%u columns: row %u, column %u, %u: %g, not %g\n", kWide, i, c, k, of(got[k]), want[k]), 1;
          }
        }
        sum += d * x * s * up, size += std::fabs(d * x * s * up);
      }
      if (std::fabs(hooks.p[i] - sum) > 1e-5 * size + 1e-6) return printf("%u columns: row %u: %g, not %g\n", kWide, i, hooks.p[i], sum), 1;
    }
  }
  return 0;
}
int main() { return run<24, 0>() + run<520, 0>() + run<520, 3>() + run<25, 0>() + run<1032, 0>(); }
"#;

/// Each row of some, by two warps: in vectors, element by element, and what lies behind vectors.
#[test]
fn gradients_of_gated_rows() {
    let library = library::text();
    let from = |begin: &str, end: &str| {
        let begin = library.find(begin).unwrap_or_else(|| panic!("`{begin}` is in the library"));
        let length = library[begin..].find(end).expect("it ends") + end.len();
        &library[begin..begin + length]
    };
    let curves = [
        from("MK_DEVICE float silu(", "\n"),
        from("MK_DEVICE float within_100(", "\n"),
        from("MK_DEVICE float mul_silu(", "\n"),
        from("MK_DEVICE float silu_grad(", "\n}\n"),
    ];
    let whole = function(&library, "MK_DEVICE void swiglu_grad_rows(");
    let rows = from("struct SwigluGradTask {", whole);
    let text = GATED_ROWS.replace("OPERATIONS", &curves.concat()).replace("ROWS", rows);
    run("gradients_of_gated_rows", &text);
}

const QUOTIENTS: &str = r#"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
typedef uint32_t u32;
#define MK_DEVICE inline
static float __frcp_rn(float x) { return 1.0f / x; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static float __int_as_float(u32 bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static u32 bits(float x) { u32 b; std::memcpy(&b, &x, 4); return b; }
DIVISOR
int main() {
  u32 state = 1, wrong = 0;
  const auto random = [&] { return state = state * 1664525u + 1013904223u; };
  for (u32 i = 0; i < 20000000 && wrong < 10; ++i) {
    // Factors of all magnitudes, elements of a block that has them.
    const float factor = __int_as_float(random() >> 1), x = std::fmin(448.0f, 1.0f * (random() >> 8) / (1 << 15)) * factor * (i % 2 ? 1.0f : -1.0f);
    if (!(factor > 0) || !std::isfinite(factor) || !std::isfinite(x)) continue;
    const float got = Divisor(factor).quotient(x), want = x / factor;
    if (bits(got) != bits(want)) printf("%a / %a is %a, not %a\n", x, factor, got, want), ++wrong;
  }
  const float inf = INFINITY;
  for (auto [x, factor] : {std::pair{0.0f, 1.0f}, {-0.0f, 3.0f}, {1.0f, inf}, {-1.0f, inf}, {0x1p-149f, 0x1p-149f}, {448 * 0x1p-140f, 0x1p-140f}, {3e38f, 3e38f / 448}}) {
    if (bits(Divisor(factor).quotient(x)) != bits(x / factor)) printf("%a / %a is %a\n", x, factor, Divisor(factor).quotient(x)), ++wrong;
  }
  if (!std::isnan(Divisor(inf).quotient(inf)) || !std::isnan(Divisor(NAN).quotient(1.0f))) printf("a NaN is lost\n"), ++wrong;
  return wrong != 0;
}
"#;

#[test]
fn quotients_by_a_factor_are_the_nearest() {
    let library = library::text();
    let divisor = definition(&library, "struct Divisor {");
    run("quotients_by_a_factor_are_the_nearest", &QUOTIENTS.replace("DIVISOR", divisor));
}
