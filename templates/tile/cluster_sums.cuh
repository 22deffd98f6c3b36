// The sums of a tile that the CTAs of a cluster share: shown to each other, added in order, finished and stored.
// Shows a fragment's sums, where stages were: of rows that there are.
template <class Config>
MK_DEVICE void show_sums(const GemmSmem<Config>& smem, const GemmTile& tile, u32 consumer,
                         const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 row = fragment_row<Config>(consumer, m) + half * 8;
      if (static_cast<i32>(row) >= tile.valid_rows) continue;
#pragma unroll
      for (u32 j = 0; j < Config::kColsPerConsumer / 8; ++j) {
        const u32 col = Config::first_col(consumer) + j * 8 + lane_index() % 4 * 2;
        st_shared_f32x2(smem.sum(row, col), acc[m][j * 4 + half * 2], acc[m][j * 4 + half * 2 + 1]);
      }
    }
  }
}

// Eight neighbouring sums of all CTAs, added in the order of k.
template <class Config>
MK_DEVICE void add_sums(u32 at, float (&x)[8]) {
  Floats4 parts[Config::kCluster][2];
#pragma unroll
  for (u32 p = 0; p < Config::kCluster; ++p) {
    const u32 there = cluster_address(at, p);
    parts[p][0] = ld_cluster_floats4(there);
    parts[p][1] = ld_cluster_floats4(there + 16);
  }
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    x[i] = parts[0][i / 4].x[i % 4];
#pragma unroll
    for (u32 p = 1; p < Config::kCluster; ++p) x[i] += parts[p][i / 4].x[i % 4];
  }
}

// Eight neighbouring results to the caller's rows.
template <Dtype kOut>
MK_DEVICE void store_eight(u64 address, const float (&x)[8], bool wide, bool pairs, i32 left) {
  if (wide && left >= 8) {
    Vec16 v;
    if constexpr (kOut == Dtype::F32) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) v.x[i] = __float_as_uint(x[half * 4 + i]);
        st_vec16(reinterpret_cast<void*>(address + half * 16), v);
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) v.x[i] = pack2<kOut>(x[2 * i], x[2 * i + 1]);
      st_vec16(reinterpret_cast<void*>(address), v);
    }
    return;
  }
#pragma unroll
  for (i32 i = 0; i < 4; ++i) {
    if (left > 2 * i) store_pair<kOut>(address + 2 * i * element_bytes(kOut), x[2 * i], x[2 * i + 1], pairs, left - 2 * i);
  }
}

// Of a barrier among the threads of one agent: its program order, and no edge of a plan.
constexpr u32 kNoEdge = 0xffffffffu;

// Run by all threads of both consumers, in place of `store_tile_direct`, with the same edges.
template <class Config, class Edges, class Hooks>
MK_DEVICE void store_tile_shared(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                                 RingCursor<Config::kPanels>& staging, u32& tiles,
                                 const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kThreads = Config::kConsumers * kWarpgroupThreads, kAcross = Config::kOutCols / 8, kBytes = element_bytes(Config::kOut);
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  // The other consumer has multiplied what lies there, too.
  named_barrier_sync<kNoEdge, 1, kThreads>();
  show_sums<Config>(smem, tile, consumer, acc);
  __syncwarp();
  if (lane_index() < Config::kCluster) mbarrier_arrive_cluster(cluster_address(smem.exchange_full(), lane_index()));
  mbarrier_wait_cluster(smem.exchange_full(), tiles & 1);
  const u64 data = tile.c_data + static_cast<u64>(tile.c_row) * tile.c_pitch_bytes + static_cast<u64>(tile.c_col) * kBytes;
  const bool wide = (data | tile.c_pitch_bytes) % 16 == 0, pairs = (data | tile.c_pitch_bytes) % (2 * kBytes) == 0;
  const u32 rows = ctx.aborted() || tile.valid_rows < 0 ? 0 : min(static_cast<u32>(tile.valid_rows), Config::kBlockM);
  const u32 pieces = rows * kAcross, rank = cluster_rank();
#pragma unroll 1
  for (u32 i = pieces * rank / Config::kCluster + threadIdx.x - kWarpgroupThreads; i < pieces * (rank + 1) / Config::kCluster; i += kThreads) {
    const u32 row = i / kAcross, col = i % kAcross * 8;
    const i32 left = tile.valid_cols - static_cast<i32>(col);
    if (left <= 0) continue;
    float x[8];
    add_sums<Config>(smem.sum(row, col), x);
    if constexpr (Config::kGated) {
      float up[8];
      add_sums<Config>(smem.sum(row, Config::kOutCols + col), up);
#pragma unroll
      for (u32 j = 0; j < 8; ++j) x[j] = silu(x[j]) * up[j];
    }
#pragma unroll
    for (u32 j = 0; j < 4; ++j) hooks.epilogue(tile, row, col + 2 * j, x[2 * j], x[2 * j + 1]);
    store_eight<Config::kOut>(data + static_cast<u64>(row) * tile.c_pitch_bytes + col * kBytes, x, wide, pairs, left);
  }
  // Loads of the next tile may overwrite all of it.
  fence_proxy_async_cluster();
  __syncwarp();
  if (lane_index() < Config::kCluster) mbarrier_arrive_cluster(cluster_address(smem.exchange_read(), lane_index()));
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(smem.staging_full(consumer, staging.stage));
  staging.advance();
  ++tiles;
}
