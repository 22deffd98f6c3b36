// Products and masks of attention's gradients, of one consumer's 64 rows; registers lie as in attend_softmax.cuh.
// X Y^T of a consumer's rows of a held matrix and a block of a moving one, `kDepth` deep, left in flight.
template <class Config, u32 kDepth>
MK_DEVICE void attend_grad_scores(u32 held, u32 moved, u32 consumer, float (&s)[Config::kScores]) {
  const u64 a = sm90_descriptor_k_major(held + consumer * Config::kConsumerRows * Config::kPanelRowBytes);
  const u64 b = sm90_descriptor_k_major(moved);
  sm90_wgmma_fence();
#pragma unroll
  for (u32 kk = 0; kk < kDepth / kWgmmaK; ++kk) {
    const u32 step = kk % 4 * kKMajorStepBytes;
    sm90_wgmma<Config::kDtype, ALayout::KMajor, BLayout::KMajor>(s, a + ((kk / 4 * Config::kHeldPanelBytes + step) >> 4),
                                                                 b + ((kk / 4 * Config::kKvPanelBytes + step) >> 4), kk != 0);
  }
  sm90_wgmma_commit();
}

// Adds weights, in registers, times a block of a moving matrix; left in flight.
template <class Config, u32 kResults>
MK_DEVICE void attend_grad_add(u32 moved, const u32 (&w)[Config::kWeights], float (&sum)[kResults]) {
  const u64 b = sm90_descriptor_mn_major<Config::kPanelRowBytes>(moved, Config::kBlockN);
  sm90_wgmma_fence();
#pragma unroll
  for (u32 kk = 0; kk < Config::kBlockN / kWgmmaK; ++kk) {
    sm90_wgmma_from_registers<Config::kDtype, BLayout::NMajor>(
        sum, w + 4 * kk, b + ((kk * sm90_mn_major_step_bytes(Config::kPanelRowBytes)) >> 4), 1);
  }
  sm90_wgmma_commit();
}

// What the gradient of a capped score is times to be that of the score, from its weight and logarithm, times log2(e): the weight of a
// smaller score may be 0, and then so is all of it.
template <class Config>
MK_DEVICE float attend_cap_slope(float weight, float lse) {
  if constexpr (Config::kCapBits == 0) return 1.0f;
  const float t = fmaxf((log2_approx(weight) + lse) * (1.0f / (__uint_as_float(Config::kCapBits) * kLog2E)), -1.0f);
  return 1.0f - t * t;
}

// Leaves nothing of columns that are not in [low, end): of the thread's first row, of its second. Selects: what is there may be NaN.
template <class Config>
MK_DEVICE void attend_grad_mask(float (&x)[Config::kScores], i32 low0, i32 low1, i32 end0, i32 end1) {
  const i32 first = static_cast<i32>(lane_index() % 4 * 2);
#pragma unroll
  for (u32 i = 0; i < Config::kScores; ++i) {
    const i32 col = static_cast<i32>(i / 4 * 8 + i % 2) + first;
    const bool second = i % 4 >= 2;
    if (col < (second ? low1 : low0) || col >= (second ? end1 : end0)) x[i] = 0.0f;
  }
}

// The blocks that move past a tile, part by part.
template <class Config, class Hooks, class Tile>
struct AttendGradWalk {
  const Hooks& hooks;
  const Tile& tile;
  i32 chunk = -1;
  i32 left = 0;      // blocks of the part
  i32 rows = 0;      // rows of the part from the block's first on
  i32 diagonal = 0;  // position of the tile's first row less that of the block's first; of bounds, of 0
  u32 span = 0;      // in shared memory, and bounds behind it, where these mask

  // Where bounds mask, once what the tile holds is there.
  MK_DEVICE void begin(u32 at, u32 consumer) {
    span = at;
    attend_put_bounds<Config>(at + kSpanBytes, tile.bounds, tile.rows, consumer);
  }
  MK_DEVICE AttendBounds bounds(u32 consumer) const { return attend_get_bounds<Config>(span + kSpanBytes, consumer); }

  MK_DEVICE bool next() {
    constexpr i32 kN = static_cast<i32>(Config::kBlockN);
    while (left == 0) {
      if (++chunk >= tile.chunks) return false;
      auto c = hooks.chunk(tile, chunk);
      if constexpr (Config::kBounded) c.narrow(attend_get_span(span));
      left = c.template blocks<Config>(tile);
      rows = c.rows + kN;
      if constexpr (Config::kCausal) diagonal = tile.position - c.position + kN;
      if constexpr (Config::kBounded) diagonal = kN - c.position;
    }
    --left;
    rows -= kN;
    diagonal -= kN;
    return true;
  }

  MK_DEVICE bool ragged() const { return rows < static_cast<i32>(Config::kBlockN); }

  // Whether some of a consumer's scores of the block are of pairs that do not see each other, or do not exist.
  MK_DEVICE bool masked(u32 consumer) const {
    constexpr i32 kN = static_cast<i32>(Config::kBlockN), kM = static_cast<i32>(Config::kConsumerRows);
    const i32 first = static_cast<i32>(consumer) * kM;
    if constexpr (Config::kBounded) return rows < kN || !bounds(consumer).all(-diagonal, kN);
    if constexpr (!Config::kCausal) return rows < kN;
    if constexpr (Config::kWindow > 0) {
      if (Config::kHoldsQueries ? diagonal + first + kM > Config::kWindow : diagonal + first + Config::kWindow < kN) return true;
    }
    return rows < kN || (Config::kHoldsQueries ? diagonal + first < kN - 1 : diagonal + first + kM - 1 > 0);
  }

  MK_DEVICE void mask(u32 consumer, float (&x)[Config::kScores]) const {
    i32 low0 = 0, low1 = 0, end0 = rows, end1 = rows;
    if constexpr (Config::kBounded) {
      const AttendBounds b = bounds(consumer);
      low0 = b.from[0] + diagonal;
      low1 = b.from[1] + diagonal;
      end0 = min(rows, b.end[0] + diagonal);
      end1 = min(rows, b.end[1] + diagonal);
    }
    if constexpr (Config::kCausal) {
      const i32 row = diagonal + static_cast<i32>(consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4);
      if constexpr (Config::kHoldsQueries) {
        end0 = min(rows, row + 1);
        end1 = min(rows, row + 8 + 1);
        if constexpr (Config::kWindow > 0) {
          low0 = row + 1 - Config::kWindow;
          low1 = low0 + 8;
        }
      } else {
        low0 = row;
        low1 = row + 8;
        if constexpr (Config::kWindow > 0) {
          end0 = min(rows, row + Config::kWindow);
          end1 = min(rows, row + 8 + Config::kWindow);
        }
      }
    }
    attend_grad_mask<Config>(x, low0, low1, end0, end1);
  }
};

// This consumer's rows of a gradient, times `factor`, by ordinary stores.
template <class Config, u32 kResults>
MK_DEVICE void attend_grad_store(const Context& ctx, u64 first, u64 pitch_bytes, i32 rows, u32 consumer, float factor,
                                 const float (&sum)[kResults]) {
  const bool aborted = ctx.aborted();
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const u32 row = consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4 + r * 8;
    const bool stores = !aborted && first != 0 && static_cast<i32>(row) < rows;
    attend_store_row<Config>(first + row * pitch_bytes, r, factor, stores, sum);
  }
}
