// The sums of a tile that the CTAs of a cluster share. Each finishes a part of the columns: the others send it theirs of those, thread by
// thread, and it adds them in the order of k.

// The first unit that CTA `rank` finishes, of a consumer's.
template <class Config>
MK_DEVICE constexpr u32 first_unit(u32 rank) { return Config::kUnits * rank / Config::kCluster; }

// Four accumulators of a unit: of the left 8 columns or the right ones; of gates, or of ups.
template <class Config>
MK_DEVICE const float* unit_vector(const float (&acc)[Config::kMmasPerStep][Config::kAccumulators], u32 unit, u32 v) {
  const u32 across = unit % Config::kUnitsAcross;
  const u32 at = Config::kGated ? across * 4 + v * (Config::kAccumulators / 2) : across * 8 + v * 4;
  return &acc[unit / Config::kUnitsAcross][at];
}

// This warp's first row of a unit, and column.
template <class Config>
MK_DEVICE u32 unit_col(u32 consumer, u32 unit) {
  if constexpr (Config::kSwapped) {
    return Config::first_col(consumer) + unit / Config::kUnitsAcross * 64 + warp_index() % kWarpgroupWarps * 16;
  }
  return Config::first_col(consumer) + unit % Config::kUnitsAcross * Config::kUnitCols;
}
template <class Config>
MK_DEVICE u32 unit_row(u32 consumer, u32 unit) {
  if constexpr (Config::kSwapped) return unit % Config::kUnitsAcross * 16;
  return Config::first_row(consumer) + unit / Config::kUnitsAcross * 64 + warp_index() % kWarpgroupWarps * 16;
}

// Bytes that come of the units of one CTA: of warps that have rows.
template <class Config>
MK_DEVICE u32 incoming_bytes(i32 valid_rows, u32 rank) {
  u32 warps = 0;
  for (u32 unit = first_unit<Config>(rank); unit < first_unit<Config>(rank + 1); ++unit) {
#pragma unroll
    for (u32 consumer = 0; consumer < Config::kConsumers; ++consumer) {
      if constexpr (Config::kSwapped) {
        warps += static_cast<i32>(unit % Config::kUnitsAcross * 16) < valid_rows ? kWarpgroupWarps : 0;
        continue;
      }
      const i32 rows = valid_rows - static_cast<i32>(Config::first_row(consumer) + unit / Config::kUnitsAcross * 64);
      warps += rows <= 0 ? 0 : rows >= 64 ? kWarpgroupWarps : (static_cast<u32>(rows) + 15) / 16;
    }
  }
  return warps * 2 * 512 * (Config::kCluster - 1);
}

// Sends the others what they finish, and keeps what this CTA does.
template <class Config>
MK_DEVICE void send_sums(const GemmSmem<Config>& smem, const GemmTile& tile, u32 consumer, u32 rank,
                         const float (&acc)[Config::kMmasPerStep][Config::kAccumulators],
                         float (&mine)[Config::kMostUnits][8]) {
#pragma unroll
  for (u32 p = 0; p < Config::kCluster; ++p) {
    const u32 first = first_unit<Config>(p), units = first_unit<Config>(p + 1) - first;
    if (p == rank) {
#pragma unroll
      for (u32 i = 0; i < units; ++i) {
#pragma unroll
        for (u32 e = 0; e < 8; ++e) mine[i][e] = unit_vector<Config>(acc, first + i, e / 4)[e % 4];
      }
    } else {
      const u32 to = cluster_address(smem.sums(rank < p ? rank : rank - 1, 0, 0), cta_of_part<Config>(p));
      const u32 bar = cluster_address(smem.exchange_full(), cta_of_part<Config>(p));
#pragma unroll
      for (u32 i = 0; i < units; ++i) {
        if (static_cast<i32>(unit_row<Config>(consumer, first + i)) >= tile.valid_rows) continue;
#pragma unroll
        for (u32 v = 0; v < 2; ++v) {
          st_async_floats4(to + (i * 2 + v) * Config::kVectorBytes, unit_vector<Config>(acc, first + i, v), bar);
        }
      }
    }
  }
}

// The sums of a unit that this CTA finishes, in the order of k.
template <class Config>
MK_DEVICE void add_sums(const GemmSmem<Config>& smem, u32 rank, u32 i, const float (&mine)[8], float (&x)[8]) {
#pragma unroll
  for (u32 p = 0; p < Config::kCluster; ++p) {
#pragma unroll
    for (u32 v = 0; v < 2; ++v) {
      Floats4 part;
      if (p == rank) {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) part.x[e] = mine[v * 4 + e];
      } else {
        part = ld_shared_floats4(smem.sums(p < rank ? p : p - 1, i, v));
      }
#pragma unroll
      for (u32 e = 0; e < 4; ++e) x[v * 4 + e] = p == 0 ? part.x[e] : x[v * 4 + e] + part.x[e];
    }
  }
}

// Eight neighbouring results, packed, to the caller's rows.
MK_DEVICE void store_eight(u64 address, const Vec16& v, bool wide, bool pairs, i32 left) {
  u16* const out = reinterpret_cast<u16*>(address);
  if (wide && left >= 8) {
    st_vec16(out, v);
    return;
  }
#pragma unroll
  for (i32 i = 0; i < 4; ++i) {
    if (left <= 2 * i) break;
    if (pairs && left >= 2 * i + 2) {
      st_u32(out + 2 * i, v.x[i]);
    } else {
      st_u16(out + 2 * i, static_cast<u16>(v.x[i]));
      if (left >= 2 * i + 2) st_u16(out + 2 * i + 1, static_cast<u16>(v.x[i] >> 16));
    }
  }
}

// Sixteen rows and columns of results, which are added and through their elementwise operations, to the caller's rows: lanes side by side
// store what lies side by side; through room of this warp's.
template <class Config, class Hooks>
MK_DEVICE void store_unit(const Hooks& hooks, const GemmTile& tile, u64 data, u32 room, u32 row, u32 col, i32 rows, float (&x)[8]) {
  constexpr u32 kBytes = element_bytes(Config::kOut);
  const bool wide = (data | tile.c_pitch_bytes) % 16 == 0, pairs = (data | tile.c_pitch_bytes) % (2 * kBytes) == 0;
  if constexpr (Config::kSwapped && Config::kChained) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      pair_columns(x[2 * j], x[2 * j + 1]);
      hooks.epilogue(tile, row + j / 2 * 8 + paired_row(), col + j % 2 * 8 + paired_col(), x[2 * j], x[2 * j + 1]);
    }
  }
  __syncwarp();
  const u32 packed[4] = {pack2<Config::kOut>(x[0], x[1]), pack2<Config::kOut>(x[2], x[3]), pack2<Config::kOut>(x[4], x[5]),
                         pack2<Config::kOut>(x[6], x[7])};
  if constexpr (Config::kSwapped && Config::kChained) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      st_shared(room + (j / 2 * 8 + paired_row()) * 32 + j % 2 * 16 + paired_col() * 2, packed[j]);
    }
  } else if constexpr (Config::kSwapped) {
    const u32 r = lane_index() / 16 * 8 + lane_index() % 8;
    stmatrix_x4_trans(room + r * 32 + lane_index() / 8 % 2 * 16, packed[0], packed[1], packed[2], packed[3]);
  } else {
    stmatrix_x4(room + lane_index() % 16 * 32 + lane_index() / 16 * 16, packed[0], packed[1], packed[2], packed[3]);
  }
  __syncwarp();
  const Vec16 v = ld_shared_vec16(room + lane_index() * 16);
  const u32 r = row + lane_index() / 2, c = col + lane_index() % 2 * 8;
  const i32 left = static_cast<i32>(r) < rows ? tile.valid_cols - static_cast<i32>(c) : 0;
  if (left > 0) store_eight(data + r * tile.c_pitch_bytes + c * kBytes, v, wide, pairs, left);
}

// Stores a tile of swapped operands past TMA, in place of `store_tile_direct`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void store_swapped_direct(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                                    RingCursor<Config::kPanels>& staging, const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  const u64 data = tile.c_data + static_cast<u64>(tile.c_row) * tile.c_pitch_bytes + static_cast<u64>(tile.c_col) * element_bytes(Config::kOut);
  const u32 room = smem.panel(consumer, staging.stage) + warp_index() % kWarpgroupWarps * 512;
  const i32 rows = ctx.aborted() ? 0 : tile.valid_rows;
#pragma unroll
  for (u32 i = 0; i < Config::kUnits; ++i) {
    const u32 row = unit_row<Config>(consumer, i);
    if (static_cast<i32>(row) >= rows) continue;
    float x[8];
#pragma unroll
    for (u32 e = 0; e < 8; ++e) x[e] = unit_vector<Config>(acc, i, e / 4)[e % 4];
    store_unit<Config>(hooks, tile, data, room, row, unit_col<Config>(consumer, i), rows, x);
  }
  __syncwarp();
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(smem.staging_full(consumer, staging.stage));
  staging.advance();
}

// Run by all threads of both consumers, in place of `store_tile_direct`, with the same edges. `last`: the CTA has no tile behind it.
template <class Config, class Edges, class Hooks>
MK_DEVICE void store_tile_shared(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                                 RingCursor<Config::kPanels>& staging, u32& tiles, bool last,
                                 const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kBytes = element_bytes(Config::kOut);
  constexpr bool kThrough = element_bytes(Config::kOut) == 2 && !Config::kGated;
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  const u32 rank = depth_rank<Config>();
  if (tiles == 0) {
    // The others' barriers are there.
    cluster_wait();
  } else {
    mbarrier_wait_cluster(smem.exchange_read(), (tiles - 1) & 1);
  }
  // Behind that wait all of this CTA's warps have seen the last tile's sums. Where none come, this completes the phase.
  if (threadIdx.x == kWarpgroupThreads) {
    mbarrier_arrive_expect_tx<kNoEdge>(smem.exchange_full(), incoming_bytes<Config>(tile.valid_rows, rank));
  }
  float mine[Config::kMostUnits][8];
  send_sums<Config>(smem, tile, consumer, rank, acc, mine);
  mbarrier_wait_cluster(smem.exchange_full(), tiles & 1);
  const u64 data = tile.c_data + static_cast<u64>(tile.c_row) * tile.c_pitch_bytes + static_cast<u64>(tile.c_col) * kBytes;
  [[maybe_unused]] const bool pairs = (data | tile.c_pitch_bytes) % (2 * kBytes) == 0;
  const i32 rows = ctx.aborted() ? 0 : tile.valid_rows;
  const u32 first = first_unit<Config>(rank), units = first_unit<Config>(rank + 1) - first;
#pragma unroll
  for (u32 i = 0; i < Config::kMostUnits; ++i) {
    const u32 row = unit_row<Config>(consumer, first + i);
    const u32 col = unit_col<Config>(consumer, first + i);
    if (i >= units || static_cast<i32>(row) >= rows) continue;
    float x[8];
    add_sums<Config>(smem, rank, i, mine[i], x);
    if constexpr (Config::kGated) {
#pragma unroll
      for (u32 e = 0; e < 4; ++e) x[e] = silu(x[e]) * x[4 + e];
    }
    if constexpr (!Config::kSwapped) {
#pragma unroll
      for (u32 j = 0; j < Config::kUnitCols / 4; ++j) {
        const u32 r = row + lane_index() / 4 + j % 2 * 8, c = col + j / 2 * 8 + lane_index() % 4 * 2;
        const i32 left = static_cast<i32>(r) < rows ? tile.valid_cols - static_cast<i32>(c) : 0;
        if (left <= 0) continue;
        hooks.epilogue(tile, r, c, x[2 * j], x[2 * j + 1]);
        if constexpr (!kThrough) store_pair<Config::kOut>(data + r * tile.c_pitch_bytes + c * kBytes, x[2 * j], x[2 * j + 1], pairs, left);
      }
    }
    // Through room of this warp's that it has read.
    if constexpr (kThrough) store_unit<Config>(hooks, tile, data, smem.sums(0, i, 0) - lane_index() * 16, row, col, rows, x);
  }
  __syncwarp();
  // This CTA's own warps, too: CTAs that finish nothing wait for nobody, and would be two phases ahead of it.
  if (!last && lane_index() < Config::kCluster) {
    mbarrier_arrive_cluster(cluster_address(smem.exchange_read(), cta_of_part<Config>(lane_index())));
  }
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(smem.staging_full(consumer, staging.stage));
  staging.advance();
  ++tiles;
}
