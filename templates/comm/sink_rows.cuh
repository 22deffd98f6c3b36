// Gradients of sinks: of a head the sum of -exp(sink - lse) * delta over its queries. Ordinary loads and stores; a thread has every so
// manyth query, and the threads' sums are added up in one order, whatever order they come in.
struct SinkRows {
  u64 stats, pitch_bytes, step_bytes;  // of the first query of the first step
  u64 sink, dst;
  i32 rows, steps;
};

// Loads of as many queries are in flight together.
constexpr u32 kSinkSteps = 8;

// What the queries of a thread give: of `threads` threads it is the `thread`th.
MK_DEVICE float sink_rows(const SinkRows& tile, u32 thread, u32 threads) {
  const u32 rows = static_cast<u32>(max(tile.rows, 0));
  const float sink = __uint_as_float(ld_u32(reinterpret_cast<const void*>(tile.sink)));
  float sum = 0.0f;
#pragma unroll 1
  for (i32 step = 0; step < tile.steps; ++step) {
    const u64 stats = tile.stats + static_cast<u64>(step) * tile.step_bytes;
#pragma unroll 1
    for (u32 first = thread; first < rows; first += kSinkSteps * threads) {
      float lse[kSinkSteps], delta[kSinkSteps];
#pragma unroll
      for (u32 s = 0; s < kSinkSteps; ++s) {
        // Behind the last query the last once more, which gives nothing: no branch stands between loads.
        const u32 row = min(first + s * threads, rows - 1);
        ld_f32x2(reinterpret_cast<const void*>(stats + row * tile.pitch_bytes), lse[s], delta[s]);
        if (first + s * threads >= rows) delta[s] = 0.0f;
      }
#pragma unroll
      for (u32 s = 0; s < kSinkSteps; ++s) {
        // Rows that see nothing, of a sink without weight.
        const float weight = lse[s] == minus_infinity() ? 0.0f : exp2_approx((sink - lse[s]) * kLog2E);
        sum -= weight * delta[s];
      }
    }
  }
  return sum;
}

// A task of a role.
struct SinkTask {
  u32 task;  // linear index in the role
  u32 family;
  SinkRows tile;
};

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void sink_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
  __shared__ float of_warps[kThreads / 32];
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    SinkTask task;
    if (!turns.begin(task, thread, [&](const SinkTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    float sum = sink_rows(task.tile, thread, kThreads);
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (thread % 32 == 0) of_warps[thread / 32] = sum;
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      float total = 0.0f;
#pragma unroll
      for (u32 w = 0; w < kThreads / 32; ++w) total += of_warps[w];
      if (thread == 0 && !ctx.aborted()) st_u32(reinterpret_cast<void*>(task.tile.dst), __float_as_uint(total));
      __syncwarp();
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
