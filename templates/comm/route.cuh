// Which rows experts have, from the experts that each token names: how many, and the token of each. Ordinary loads and stores; whole warps.
struct CountsTask {
  u32 task;         // linear index in the role
  u32 family;
  u64 source;       // experts of each token, i32 [tokens, slots]
  u64 destination;  // rows of the first expert, i32
  u32 tokens, slots;
  u32 experts;      // all of them
  u32 first, count;  // of which these are counted
};

struct TokensTask {
  u32 task;
  u32 family;
  u64 source;       // experts of each token, i32 [tokens, slots]
  u64 blocks;       // expert and rows of each block, two i32
  u64 destination;  // tokens of the block's rows, i32
  u32 tokens, slots;
  u32 block, rows;
};

MK_DEVICE u32 expert_of(u64 source, u32 entry) { return ld_u32(reinterpret_cast<const void*>(source + u64{entry} * 4)); }

// How often a token names an expert.
MK_DEVICE u32 names_expert(u64 source, u32 tokens, u32 slots, u32 token, u32 expert) {
  u32 times = 0;
#pragma unroll 4
  for (u32 slot = 0; token < tokens && slot < slots; ++slot) times += expert_of(source, token * slots + slot) == expert;
  return times;
}

// Each warp counts the tokens of every so many experts, and looks for tokens that name one twice; who has the first expert looks for such that
// there are not. Both end the launch: nothing is indexed by what a token names, and nobody is told of the counts.
MK_DEVICE void count_rows(const Context& ctx, const CountsTask& work, u32 thread, u32 threads) {
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 at = thread / 32; at < work.count; at += threads / 32) {
    const u32 expert = work.first + at;
    u32 rows = 0, wrong = work.tokens, entry = 0;
    bool twice = false;
#pragma unroll 1
    for (u32 from = 0; from < work.tokens; from += 32) {
      const u32 token = from + lane;
      const u32 times = names_expert(work.source, work.tokens, work.slots, token, expert);
      rows += __popc(__ballot_sync(0xffffffffu, times > 0));
      u32 outside = 0;
      for (u32 slot = 0; expert == 0 && token < work.tokens && slot < work.slots; ++slot) {
        const u32 named = expert_of(work.source, token * work.slots + slot);
        if (named >= work.experts) outside = 1, entry = named;
      }
      const u32 not_there = __ballot_sync(0xffffffffu, outside != 0), again = __ballot_sync(0xffffffffu, times > 1);
      if (wrong == work.tokens && (not_there | again) != 0) {
        const u32 l = __ffs(not_there != 0 ? not_there : again) - 1;
        wrong = from + l, twice = not_there == 0;
        entry = __shfl_sync(0xffffffffu, twice ? expert : entry, l);
        break;
      }
    }
    if (lane != 0) continue;
    if (wrong < work.tokens) {
      give_up(ctx, Fault{twice ? FaultKind::ExpertTwice : FaultKind::ExpertOutside, 0, work.experts, entry, wrong, kNoPeer, 0, 0});
    } else {
      st_u32(reinterpret_cast<void*>(work.destination + u64{at} * 4), rows);
    }
  }
}

// The tokens of a block's rows, in their order. Each warp has consecutive tokens, and counts those before them by itself. Rows that nobody has
// are of the first token.
MK_DEVICE void list_tokens(const Context&, const TokensTask& work, u32 thread, u32 threads) {
  const u32 lane = thread % 32, warps = threads / 32;
  const u32 expert = expert_of(work.blocks, work.block * 2), rows = min(expert_of(work.blocks, work.block * 2 + 1), work.rows);
  for (u32 row = rows + thread; row < work.rows; row += threads) st_u32(reinterpret_cast<void*>(work.destination + u64{row} * 4), 0);
  if (rows == 0) return;
  // Blocks of an expert follow each other, all of them but the last one full.
  u32 before = 0;
#pragma unroll 1
  for (u32 from = 0; from < work.block; from += 32) {
    const u32 block = from + lane;
    const bool same = block < work.block && expert_of(work.blocks, block * 2) == expert;
    before += __popc(__ballot_sync(0xffffffffu, same));
  }
  const u32 first = before * work.rows, end = first + rows;
  const u32 share = (work.tokens + 32 * warps - 1) / (32 * warps) * 32;
  const u32 begin = thread / 32 * share;
  u32 at = 0;
#pragma unroll 1
  for (u32 from = 0; from < work.tokens && from < begin + share && at < end; from += 32) {
    const u32 token = from + lane;
    const bool named = names_expert(work.source, work.tokens, work.slots, token, expert) > 0;
    const u32 all = __ballot_sync(0xffffffffu, named);
    const u32 row = at + __popc(all & ((1u << lane) - 1));
    if (named && from >= begin && row >= first && row < end) st_u32(reinterpret_cast<void*>(work.destination + u64{row - first} * 4), token);
    at += __popc(all);
  }
}

struct GatherTask {
  u64 destination;  // address of the first row
  u64 pitch_bytes;
  u64 row_bytes;    // even
  u32 rows;
};

// Rows that are each looked up, by whole warps. The first warp waits for what is looked up, and only behind that, unless the launch has ended,
// somebody does; so that where tables are not filled nothing is read by them. Threads and barrier as of `copy_rows`.
template <u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void gather_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_load(ctx, t);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      const GatherTask task = hooks.decode(t);
#pragma unroll 1
      for (u32 row = thread / 32; row < task.rows; row += kThreads / 32) {
        const u64 from = hooks.source(t, row), to = task.destination + row * task.pitch_bytes;
        if ((from | to | task.row_bytes) % 16 == 0) {
#pragma unroll 4
          for (u64 at = lane * 16; at < task.row_bytes; at += 32 * 16) RowVector<16>::store(to + at, RowVector<16>::load(from + at));
        } else {
          for (u64 at = lane * 2; at < task.row_bytes; at += 32 * 2) RowVector<2>::store(to + at, RowVector<2>::load(from + at));
        }
      }
    }
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, t);
      __syncwarp();
    }
  }
}
