// Tables that tasks look up what they work on in, from numbers that only the launch knows. Ordinary loads and stores.
struct BlocksTask {
  u32 task;         // linear index in the role
  u32 family;
  u64 source;       // rows of each group, i32
  u64 destination;  // group and rows of each block, two i32
  u32 groups;
  u32 blocks;
  u32 rows;  // of a block
};

MK_DEVICE void store_block(const BlocksTask& work, u32 block, u32 group, u32 rows) {
  st_u32x2(reinterpret_cast<void*>(work.destination + u64{block} * 8), group, rows);
}

// Blocks of the groups, one after the other; those that are left over have no rows, and come last. Run by `threads` threads, whole warps,
// of which this is the `thread`th: each warp adds up all groups, and stores the blocks of some of them. Rows below 0, and more blocks than there is room
// for, end the launch: nothing is stored past the table, and nobody is told of it.
MK_DEVICE void tabulate_blocks(const Context& ctx, const BlocksTask& work, u32 thread, u32 threads) {
  const u32 lane = thread % 32;
  u32 first = 0;  // block of the group
  u32 wrong = work.groups;  // a group of fewer than no rows
#pragma unroll 1
  for (u32 from = 0; from < work.groups; from += 32) {
    const u32 group = from + lane;
    const i32 rows = group < work.groups ? static_cast<i32>(ld_u32(reinterpret_cast<const void*>(work.source + u64{group} * 4))) : 0;
    const u32 negative = __ballot_sync(0xffffffffu, rows < 0);
    if (negative != 0 && wrong == work.groups) wrong = from + __ffs(negative) - 1;
    // One more than there are is too many, and sums of that do not wrap.
    const u32 need = rows > 0 ? min((static_cast<u32>(rows) + work.rows - 1) / work.rows, work.blocks + 1) : 0;
    u32 behind = need;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
      const u32 before = __shfl_up_sync(0xffffffffu, behind, apart);
      if (lane >= apart) behind += before;
    }
#pragma unroll 1
    for (u32 l = thread / 32; l < 32 && from + l < work.groups; l += threads / 32) {
      const u32 n = __shfl_sync(0xffffffffu, need, l), end = first + __shfl_sync(0xffffffffu, behind, l);
      const u32 of_group = __shfl_sync(0xffffffffu, static_cast<u32>(rows), l);
      for (u32 b = lane; b < n && end - n + b < work.blocks; b += 32) {
        store_block(work, end - n + b, from + l, min(of_group - b * work.rows, work.rows));
      }
    }
    first += __shfl_sync(0xffffffffu, behind, 31);
  }
  for (u32 b = first + thread; b < work.blocks; b += threads) store_block(work, b, work.groups - 1, 0);
  if (thread != 0) return;
  if (wrong < work.groups) {
    const u32 rows = ld_u32(reinterpret_cast<const void*>(work.source + u64{wrong} * 4));
    give_up(ctx, Fault{FaultKind::NegativeRows, 0, 0, rows, wrong, kNoPeer, 0, 0});
  } else if (first > work.blocks) {
    give_up(ctx, Fault{FaultKind::Capacity, 0, work.blocks, first, work.task, kNoPeer, 0, 0});
  }
}

struct BeginsTask {
  u32 task;         // linear index in the role
  u32 family;
  u64 source;       // rows of each group, i32
  u64 destination;  // the first row of each group, and the one behind all, i32
  u32 groups;
  u32 rows;  // of a block
};

// Where rows of groups begin, each in blocks of its own. One warp adds them up; whoever made the blocks has refused rows below 0.
MK_DEVICE void tabulate_phase(const Context&, const BeginsTask& work, u32, u32 thread, u32) {
  if (thread >= 32) return;
  u32 first = 0;
#pragma unroll 1
  for (u32 from = 0; from < work.groups; from += 32) {
    const u32 group = from + thread;
    const u32 rows = group < work.groups ? ld_u32(reinterpret_cast<const void*>(work.source + u64{group} * 4)) : 0;
    const u32 own = (rows + work.rows - 1) / work.rows * work.rows;
    u32 behind = own;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
      const u32 before = __shfl_up_sync(0xffffffffu, behind, apart);
      if (thread >= apart) behind += before;
    }
    if (group < work.groups) st_u32(reinterpret_cast<void*>(work.destination + u64{group} * 4), first + behind - own);
    first += __shfl_sync(0xffffffffu, behind, 31);
  }
  if (thread == 0) st_u32(reinterpret_cast<void*>(work.destination + u64{work.groups} * 4), first);
}

MK_DEVICE void tabulate_phase(const Context& ctx, const BlocksTask& work, u32, u32 thread, u32 threads) {
  tabulate_blocks(ctx, work, thread, threads);
}

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void tabulate_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    typename Hooks::Task task;
    if (!turns.begin(task, thread, [&](const typename Hooks::Task& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
#pragma unroll
    for (u32 phase = 0; phase < Hooks::kPhases; ++phase) {
      // Whole warps, or none of their lanes.
      if (__ballot_sync(0xffffffffu, ctx.aborted()) == 0) tabulate_phase(ctx, task, phase, thread, kThreads);
      named_barrier_sync<Edges::done, kBarrier, kThreads>();
    }
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
