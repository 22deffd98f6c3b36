// Statistics of queries that gradients of attention want: of each row o · do, beside the logarithm of its sum of exponentials. Ordinary
// loads and stores; neighbouring lanes have neighbouring 16 bytes of a row.
struct StatsOptions {
  u32 dim = 128;  // elements of a row
  Dtype dtype = Dtype::Bf16;
};
template <StatsOptions kOptions>
struct StatsConfig {
  static constexpr Dtype kDtype = kOptions.dtype;
  static constexpr u32 kRowBytes = kOptions.dim * element_bytes(kDtype);
  static constexpr u32 kVectors = kRowBytes / 16;  // of a row
  static constexpr u32 kLanes = kVectors % 16 == 0 ? 16 : 8, kParts = kVectors / kLanes;
  // Rows that a thread has parts of at a time: their loads are in flight together.
  static constexpr u32 kSteps = kParts == 1 ? 3 : 1;
  static_assert(kVectors == 8 || kVectors == 16 || kVectors == 24 || kVectors == 32, "rows of which a warp takes some at a time");
};

// Addresses of the first row; those of `lse` and `stats` follow each other.
struct StatsTile {
  u64 o, o_pitch_bytes;
  u64 d_o, d_o_pitch_bytes;
  u64 lse, stats;
  i32 rows;
};

// Run by `threads` threads, whole warps, of which this is the `thread`th.
template <class Config>
MK_DEVICE void stats_rows(const Context& ctx, const StatsTile& tile, u32 thread, u32 threads) {
  const bool aborted = ctx.aborted();
  const u32 lane = thread % Config::kLanes, each = threads / Config::kLanes;
  const u32 rows = static_cast<u32>(max(tile.rows, 0));
  // As many turns for all lanes of a warp: they add up together.
#pragma unroll 1
  for (u32 first = thread / Config::kLanes; first - thread / Config::kLanes < rows; first += Config::kSteps * each) {
    Vec16 x[Config::kSteps][Config::kParts], y[Config::kSteps][Config::kParts];
    u32 lse[Config::kSteps];
#pragma unroll
    for (u32 s = 0; s < Config::kSteps; ++s) {
      // Behind the last row the last once more: no branch stands between loads.
      const u32 row = min(first + s * each, rows - 1);
#pragma unroll
      for (u32 p = 0; p < Config::kParts; ++p) {
        const u32 at = (p * Config::kLanes + lane) * 16;
        x[s][p] = ld_vec16(reinterpret_cast<const void*>(tile.o + row * tile.o_pitch_bytes + at));
        y[s][p] = ld_vec16(reinterpret_cast<const void*>(tile.d_o + row * tile.d_o_pitch_bytes + at));
      }
      lse[s] = ld_u32(reinterpret_cast<const void*>(tile.lse + row * sizeof(float)));
    }
#pragma unroll
    for (u32 s = 0; s < Config::kSteps; ++s) {
      const u32 row = first + s * each;
      float sum = 0.0f;
#pragma unroll
      for (u32 i = 0; i < 4 * Config::kParts; ++i) {
        const u32 a = x[s][i / 4].x[i % 4], b = y[s][i / 4].x[i % 4];
        sum += unpack_lo<Config::kDtype>(a) * unpack_lo<Config::kDtype>(b);
        sum += unpack_hi<Config::kDtype>(a) * unpack_hi<Config::kDtype>(b);
      }
#pragma unroll
      for (u32 apart = Config::kLanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      if (row < rows && lane == 0 && !aborted) {
        st_vec16(reinterpret_cast<void*>(tile.stats + row * kStatsBytes), Vec16{lse[s], __float_as_uint(sum), 0, 0});
      }
    }
  }
}

// A task of a role.
struct StatsTask {
  u32 task;  // linear index in the role
  u32 family;
  StatsTile tile;
};

// Run by `kThreads` threads, numbered from 0 by `thread`, over the named barrier `kBarrier`: as `copy_rows`.
template <class Config, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void stats_tasks(const Context& ctx, const Hooks& hooks, u32 thread) {
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, 0, 1);; turns.advance()) {
    StatsTask task;
    if (!turns.begin(task, thread, [&](const StatsTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [] { named_barrier_sync<Edges::start, kBarrier, kThreads>(); })) {
      break;
    }
    stats_rows<Config>(ctx, task.tile, thread, kThreads);
    named_barrier_sync<Edges::done, kBarrier, kThreads>();
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
