// Copies of rows that are each looked up, by whole warps, through registers.
struct GatherTask {
  u32 task;  // linear index in the role
  u32 family;
  u64 destination;  // address of the first row
  u64 pitch_bytes;
  u64 row_bytes;    // even
  u32 rows;
};

// Vectors of one row that a lane has in flight.
constexpr u32 kGatherUnroll = 8;

// The first warp waits for what is looked up, then, by that, for what is copied, and only behind both, unless the launch has ended, the
// others look up: where tables are not filled, nothing is read by them. Threads and barrier as of `copy_rows`.
template <u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void gather_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    if (thread < 32) {
      chaos_delay(ctx, Agent::Copier, t);
      hooks.before_decode(ctx, t);
      __syncwarp();
      if (!ctx.aborted()) hooks.before_load(ctx, t);
      __syncwarp();
    }
    named_barrier_sync<Edges::start, kBarrier, kThreads>();
    if (!ctx.aborted()) {
      const GatherTask task = hooks.decode(t);
#pragma unroll 1
      for (u32 row = thread / 32; row < task.rows; row += kThreads / 32) {
        const u64 from = hooks.source(task, row), to = task.destination + row * task.pitch_bytes;
        if ((from | to | task.row_bytes) % 16 == 0) {
#pragma unroll 1
          for (u64 at = lane * 16; at < task.row_bytes; at += 32 * 16 * kGatherUnroll) {
            Vec16 v[kGatherUnroll];
#pragma unroll
            for (u32 i = 0; i < kGatherUnroll; ++i) {
              if (at + i * 512 < task.row_bytes) v[i] = RowVector<16>::load(from + at + i * 512);
            }
#pragma unroll
            for (u32 i = 0; i < kGatherUnroll; ++i) {
              if (at + i * 512 < task.row_bytes) RowVector<16>::store(to + at + i * 512, v[i]);
            }
          }
        } else {
#pragma unroll 4
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
