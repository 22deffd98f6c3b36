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

struct BoundsTask {
  u32 task;         // linear index in the role
  u32 family;
  u64 source;       // where documents begin, and the last one ends, i32
  u64 destination;  // two i32 of each row
  u32 entries;      // of the source
  u32 first;        // row of the sequence
  u32 rows;         // of the task
  u32 tokens;       // of the sequence
  bool keys;        // whose rows these are: those of keys, or of queries
  bool causal;      // whether a query sees no keys behind it
  u32 window;       // of those before it, how many, its own among them; 0: all
};

template <class Work>
MK_DEVICE i32 document_begin(const Work& work, u32 entry) {
  return static_cast<i32>(ld_u32(reinterpret_cast<const void*>(work.source + u64{entry} * 4)));
}

// Which positions of the other side a row meets: its document's, as far as the mask goes. Whatever memory says, they are positions of the
// sequence.
template <class Work>
MK_DEVICE void document_bounds(const Work& work, i32 row, i32& low, i32& high) {
  const i32 tokens = static_cast<i32>(work.tokens), window = static_cast<i32>(work.window);
  // The first entry that is beyond the row.
  u32 next = 0, end = work.entries;
  while (next < end) {
    const u32 middle = (next + end) / 2;
    if (document_begin(work, middle) <= row) {
      next = middle + 1;
    } else {
      end = middle;
    }
  }
  if (next == 0 || next == work.entries) {
    low = high = max(min(document_begin(work, work.entries - 1), tokens), 0);
    return;
  }
  low = max(document_begin(work, next - 1), 0);
  high = min(document_begin(work, next), tokens);
  if (work.causal && work.keys) {
    if (window > 0) high = row + min(window, high - row);
    low = row;
  } else if (work.causal) {
    if (window > 0) low = row + 1 - min(window, row + 1 - low);
    high = row + 1;
  }
}

// Which positions of the other side rows meet. Rows of no document meet none, behind all documents. The task of the first rows looks at all
// entries: those that begin elsewhere, descend, or end behind the last token, end the launch.
MK_DEVICE void tabulate_phase(const Context& ctx, const BoundsTask& work, u32, u32 thread, u32 threads) {
  const i32 tokens = static_cast<i32>(work.tokens);
#pragma unroll 1
  for (u32 i = thread; work.first == 0 && i < work.entries; i += threads) {
    const i32 begin = document_begin(work, i), least = i == 0 ? 0 : document_begin(work, i - 1), most = i == 0 ? 0 : tokens;
    if (begin >= least && begin <= most) continue;
    const u64 to = static_cast<u64>(most);
    give_up(ctx, Fault{FaultKind::Documents, 0, static_cast<u32>(least), static_cast<u32>(begin), i, kNoPeer, to, 0});
    break;
  }
#pragma unroll 1
  for (u32 r = thread; r < work.rows; r += threads) {
    i32 low, high;
    document_bounds(work, static_cast<i32>(work.first + r), low, high);
    st_u32x2(reinterpret_cast<void*>(work.destination + u64{r} * 8), static_cast<u32>(low), static_cast<u32>(high));
  }
}

struct MeetsTask {
  u32 task;         // linear index in the role
  u32 family;
  u64 source;       // where documents begin, and the last one ends, i32
  u64 destination;  // by place and part, 0 or 1, i32
  u32 entries;      // of the source
  u32 places;
  u32 parts;        // as many as places, or twice: then the second of a place is as far from the end as the first from the beginning
  u32 tokens;       // of the sequence
  u32 rows;         // of a part, the last ones of which may have fewer
  bool keys;        // whose rows places have: those of keys, or of queries
  bool causal;      // as in `BoundsTask`
  u32 window;
};

// Which places have a row that meets one of each part. Bounds ascend, and leave nothing out between the first row's and the last one's.
MK_DEVICE void tabulate_phase(const Context&, const MeetsTask& work, u32, u32 thread, u32 threads) {
  const auto begin = [&](u32 part) { return static_cast<i32>(min(part * work.rows, work.tokens)); };
#pragma unroll 1
  for (u32 i = thread; i < work.places * work.parts; i += threads) {
    const u32 place = i / work.parts, other = i % work.parts;
    u32 meets = 0;
#pragma unroll 1
    for (u32 half = 0; half < work.parts / work.places; ++half) {
      const u32 own = half == 0 ? place : work.parts - 1 - place;
      const i32 first = begin(own), end = begin(own + 1);
      if (first >= end) continue;
      i32 from, to, other_bound;
      document_bounds(work, first, from, other_bound);
      document_bounds(work, end - 1, other_bound, to);
      if (max(from, begin(other)) < min(to, begin(other + 1))) meets = 1;
    }
    st_u32(reinterpret_cast<void*>(work.destination + u64{i} * 4), meets);
  }
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
