// Copies of rows that are each looked up, by whole warps, through registers.
struct GatherTask {
  u32 task;  // linear index in the role
  u32 family;
  u64 destination;  // address of the first row
  u64 pitch_bytes;
  u64 row_bytes;    // a multiple of `kLeast`
  u32 rows;  // at most
  // Columns of f32 in the place of rows: elements of each, which lie below each other; 0: rows.
  u32 lines = 0;
  u64 source_pitch_bytes = 0;
};

// Vectors of each of two rows that a lane has in flight: fewer wait for memory most of the time.
constexpr u32 kGatherUnroll = 8;

// Two rows, by a warp; one, where there is no `other`.
template <u32 kLeast>
MK_DEVICE void gather_two_rows(u64 from, u64 to, u64 other, u64 other_to, u64 row_bytes, u32 lane) {
  const bool two = other != 0;
  if ((from | to | other | other_to | row_bytes) % 16 == 0) {
#pragma unroll 1
    for (u64 at = lane * 16; at < row_bytes; at += 32 * 16 * kGatherUnroll) {
      Vec16 v[kGatherUnroll], w[kGatherUnroll];
#pragma unroll
      for (u32 i = 0; i < kGatherUnroll; ++i) {
        if (at + i * 512 < row_bytes) v[i] = RowVector<16>::load(from + at + i * 512);
      }
#pragma unroll
      for (u32 i = 0; i < kGatherUnroll; ++i) {
        if (two && at + i * 512 < row_bytes) w[i] = RowVector<16>::load(other + at + i * 512);
      }
#pragma unroll
      for (u32 i = 0; i < kGatherUnroll; ++i) {
        if (at + i * 512 < row_bytes) RowVector<16>::store(to + at + i * 512, v[i]);
      }
#pragma unroll
      for (u32 i = 0; i < kGatherUnroll; ++i) {
        if (two && at + i * 512 < row_bytes) RowVector<16>::store(other_to + at + i * 512, w[i]);
      }
    }
  } else {
#pragma unroll 4
    for (u64 at = lane * kLeast; at < row_bytes; at += 32 * kLeast) {
      RowVector<kLeast>::store(to + at, RowVector<kLeast>::load(from + at));
      if (two) RowVector<kLeast>::store(other_to + at, RowVector<kLeast>::load(other + at));
    }
  }
}

// Columns: threads side by side take columns side by side, of which each element is a word of a line.
template <u32 kThreads, class Hooks>
MK_DEVICE void gather_columns(const Hooks& hooks, const GatherTask& task, u32 thread) {
  const u32 across = task.rows <= 32 ? 32 : 128;
#pragma unroll 1
  for (u32 column = thread % across; column < task.rows; column += across) {
    const u64 from = hooks.exists(task, column) ? hooks.source(task, column) : 0;
    if (from == 0) continue;
    const u64 to = task.destination + column * u64{4};
#pragma unroll 4
    for (u32 line = thread / across; line < task.lines; line += kThreads / across) {
      RowVector<4>::store(to + line * task.pitch_bytes, RowVector<4>::load(from + line * task.source_pitch_bytes));
    }
  }
}

// The first warp waits for what is looked up, then, by that, for what is copied, and only behind both, unless the launch has ended, the
// others look up: where tables are not filled, nothing is read by them. Teams, threads and barriers as of `reduce_rows`: one copies while another
// waits.
template <u32 kTeams, u32 kThreads, u32 kBarrier, class Edges, u32 kLeast = 2, bool kColumns = false, class Hooks>
MK_DEVICE void gather_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  const u32 lane = thread % 32, team = thread / kThreads;  // below kTeams
  thread %= kThreads;
#pragma unroll 1
  for (u32 t = hooks.first() + team * hooks.stride(); t < hooks.end(); t += kTeams * hooks.stride()) {
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, t);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, t);
      __syncwarp();
    }
    team_sync<Edges::start, kBarrier, kTeams, kThreads>(team);
    // Whole warps, or none of their lanes.
    if (__ballot_sync(0xffffffffu, ctx.aborted()) == 0) {
      const GatherTask task = hooks.decode(t);
      constexpr u32 kWarps = kThreads / 32;
      if constexpr (kColumns) {
        if (task.lines > 0) gather_columns<kThreads>(hooks, task, thread);
      }
#pragma unroll 1
      for (u32 first = thread / 32; first < (kColumns && task.lines > 0 ? 0 : task.rows); first += 32 * kWarps) {
        // Lanes look rows up in parallel: each look-up takes several dependent trips to memory.
        const u32 mine = first + lane * kWarps;
        const u64 place = mine < task.rows && hooks.exists(task, mine) ? hooks.source(task, mine) : 0;
#pragma unroll 1
        for (u32 some = __ballot_sync(0xffffffffu, place != 0); some != 0;) {
          const u32 l = __ffs(some) - 1;
          some &= some - 1;
          const bool two = some != 0;
          const u32 k = two ? __ffs(some) - 1 : l;
          some &= some - 1;
          const u64 from = __shfl_sync(0xffffffffu, place, l), other = __shfl_sync(0xffffffffu, place, k);
          const auto to = [&](u32 of) { return task.destination + (first + of * kWarps) * task.pitch_bytes; };
          gather_two_rows<kLeast>(from, to(l), two ? other : 0, to(k), task.row_bytes, lane);
        }
      }
    }
    team_sync<Edges::done, kBarrier, kTeams, kThreads>(team);
    if (thread < 32) {
      hooks.after_store(ctx, t);
      __syncwarp();
    }
  }
}
