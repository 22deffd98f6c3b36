// Parts of an attention put together: of each row what parts of the keys gave, with a maximum and a sum each. Ordinary loads and stores;
// a warp has a row: of its parts each lane has a maximum and a sum, and some elements of results.
struct MergeOptions {
  u32 dim = 128;  // elements of a row
  Dtype dtype = Dtype::Bf16;
  bool sinks = false;
};
template <MergeOptions kOptions>
struct MergeConfig {
  static constexpr Dtype kDtype = kOptions.dtype;
  static constexpr u32 kLaneElements = kOptions.dim / 32;  // of a row, side by side
  static constexpr bool kSinks = kOptions.sinks;
  static_assert(kOptions.dim % 64 == 0 && kOptions.dim <= 256, "whole pairs of each lane");
};

// Addresses of the first row of the first part, and of its results; `lse` and `sink` may be 0.
struct MergeRows {
  u64 acc, acc_pitch_bytes, acc_part_bytes;
  u64 stat, stat_pitch_bytes, stat_part_bytes;
  u64 o, o_pitch_bytes;
  u64 lse, sink;
  i32 rows, parts;
};

// Loads of as many parts are in flight together.
constexpr u32 kMergeSteps = 8;
// Maxima and sums of two parts are in each lane.
constexpr u32 kMergeParts = 64;

// Run by `threads` threads, whole warps, of which this is the `thread`th.
template <class Config>
MK_DEVICE void merge_rows(const Context& ctx, const MergeRows& tile, u32 thread, u32 threads) {
  constexpr u32 kElements = Config::kLaneElements;
  const bool aborted = ctx.aborted();
  const u32 lane = thread % 32, rows = static_cast<u32>(max(tile.rows, 0)), parts = static_cast<u32>(max(tile.parts, 0));
#pragma unroll 1
  for (u32 row = thread / 32; row < rows; row += threads / 32) {
    const u64 line = tile.acc + row * tile.acc_pitch_bytes + lane * (kElements * 4);
    float x[kMergeSteps][kElements];
    // Behind the last part the last once more: no branch stands between loads.
    const auto load = [&](u32 first) {
#pragma unroll
      for (u32 s = 0; s < kMergeSteps; ++s) {
        const u64 of = line + min(first + s, parts - 1) * tile.acc_part_bytes;
#pragma unroll
        for (u32 e = 0; e < kElements; e += 2) ld_f32x2(reinterpret_cast<const void*>(of + e * 4), x[s][e], x[s][e + 1]);
      }
    };
    // Results do not wait for their weights.
    if (parts > 0) load(0);
    float most = minus_infinity(), total = 0.0f, weight[2], sum[2];
    if constexpr (Config::kSinks) most = __uint_as_float(ld_u32(reinterpret_cast<const void*>(tile.sink)));
    const float sink = most;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 p = lane + i * 32;
      weight[i] = minus_infinity(), sum[i] = 0.0f;
      if (p < parts) ld_f32x2(reinterpret_cast<const void*>(tile.stat + row * tile.stat_pitch_bytes + p * tile.stat_part_bytes), weight[i], sum[i]);
      most = fmaxf(most, weight[i]);
    }
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
    // Of rows that see nothing.
    const float base = most == minus_infinity() ? 0.0f : most;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      weight[i] = exp2_approx((weight[i] - base) * kLog2E);
      total += sum[i] * weight[i];
    }
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
    if constexpr (Config::kSinks) total += exp2_approx((sink - base) * kLog2E);
    float o[kElements] = {};
#pragma unroll 1
    for (u32 first = 0; first < parts; first += kMergeSteps) {
      if (first > 0) load(first);
#pragma unroll
      for (u32 s = 0; s < kMergeSteps; ++s) {
        const u32 p = first + s;
        const float share = __shfl_sync(0xffffffffu, p < 32 ? weight[0] : weight[1], p % 32);
        if (p >= parts) continue;
#pragma unroll
        for (u32 e = 0; e < kElements; ++e) o[e] += x[s][e] * share;
      }
    }
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
    if (aborted) continue;
    const u64 to = tile.o + row * tile.o_pitch_bytes + lane * (kElements * 2);
#pragma unroll
    for (u32 e = 0; e < kElements; e += 2) {
      st_u32(reinterpret_cast<void*>(to + e * 2), pack2<Config::kDtype>(o[e] * share, o[e + 1] * share));
    }
    if (lane == 0 && tile.lse != 0) {
      const float lse = total == 0.0f ? minus_infinity() : base + log2_approx(total) * kLn2;
      st_u32(reinterpret_cast<void*>(tile.lse + row * 4ull), __float_as_uint(lse));
    }
  }
}

// A task of a role.
struct MergeTask {
  u32 task;  // linear index in the role
  u32 family;
  MergeRows tile;
};

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <class Config, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void merge_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    MergeTask task;
    if (!turns.begin(task, thread, [&](const MergeTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    merge_rows<Config>(ctx, task.tile, thread, kThreads);
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
