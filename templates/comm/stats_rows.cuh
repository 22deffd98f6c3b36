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
  static constexpr u32 kLanes = kRowBytes / 16;  // of a row
  static_assert(kLanes == 8 || kLanes == 16, "rows of which a warp takes some at a time");
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
  const u32 lane = thread % Config::kLanes;
  const u32 rows = static_cast<u32>(max(tile.rows, 0));
  const u32 each = threads / Config::kLanes;
  // As many turns for all lanes of a warp: they add up together.
#pragma unroll 2
  for (u32 first = 0; first < rows; first += each) {
    const u32 row = first + thread / Config::kLanes;
    const bool there = row < rows;
    Vec16 x{}, y{};
    if (there) {
      x = ld_vec16(reinterpret_cast<const void*>(tile.o + row * tile.o_pitch_bytes + lane * 16));
      y = ld_vec16(reinterpret_cast<const void*>(tile.d_o + row * tile.d_o_pitch_bytes + lane * 16));
    }
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      sum += unpack_lo<Config::kDtype>(x.x[i]) * unpack_lo<Config::kDtype>(y.x[i]);
      sum += unpack_hi<Config::kDtype>(x.x[i]) * unpack_hi<Config::kDtype>(y.x[i]);
    }
#pragma unroll
    for (u32 apart = Config::kLanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    if (there && lane == 0 && !aborted) {
      const u32 lse = ld_u32(reinterpret_cast<const void*>(tile.lse + row * sizeof(float)));
      st_vec16(reinterpret_cast<void*>(tile.stats + row * kStatsBytes), Vec16{lse, __float_as_uint(sum), 0, 0});
    }
  }
}
