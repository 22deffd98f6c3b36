// The agent that fills the ring: one lane, all tiles of its CTA, as many stages ahead as the ring is deep.
// A panel of an operand whose 64 M- or N-elements are contiguous: one row for each step of K.
constexpr u32 kMnPanelBytes = 64 * kBlockK * kElemBytes;

// Issues A's part of a stage. With a multicast, each CTA of the cluster issues its rows to all.
template <class Config>
MK_DEVICE void sm90_issue_a(const GemmSmem<Config>& smem, const GemmTile& tile, u32 stage, i32 k, u32 cta) {
  constexpr u16 kAllCtas = (1u << Config::kCluster) - 1;
  const u32 bar = smem.full(stage);
  if constexpr (Config::kMulticast == Multicast::A) {
    tma_load_2d_multicast(smem.a(stage) + cta * (Config::kABytes / Config::kCluster), tile.a, bar, k,
                          tile.a_row + static_cast<i32>(cta * Config::kABoxRows), kAllCtas);
  } else if constexpr (Config::kA == ALayout::MMajor) {
#pragma unroll
    for (u32 p = 0; p < Config::kAPanels; ++p) {
      tma_load_2d(smem.a(stage) + p * kMnPanelBytes, tile.a, bar, tile.a_row + static_cast<i32>(p * 64), k);
    }
  } else {
    tma_load_2d(smem.a(stage), tile.a, bar, k, tile.a_row);
  }
}

// Issues B's part of a stage, likewise.
template <class Config>
MK_DEVICE void sm90_issue_b(const GemmSmem<Config>& smem, const GemmTile& tile, u32 stage, i32 k, u32 cta) {
  constexpr u16 kAllCtas = (1u << Config::kCluster) - 1;
  constexpr bool kShared = Config::kMulticast == Multicast::B;
  const u32 bar = smem.full(stage);
  if constexpr (Config::kB == BLayout::KMajor) {
    // Gated: half the rows are gates, the other half their ups.
    constexpr u32 kBoxes = Config::kBlockN / Config::kBBoxRows;
#pragma unroll
    for (u32 i = 0; i < (kShared ? 1 : kBoxes); ++i) {
      const u32 box = kShared ? cta : i;
      const i32 up = Config::kGated && box >= kBoxes / 2 ? tile.b_up - static_cast<i32>(Config::kOutCols) : 0;
      const i32 col = tile.b_col + static_cast<i32>(box * Config::kBBoxRows) + up;
      const u32 to = smem.b(stage) + box * Config::kBBoxRows * kBlockK * kElemBytes;
      if constexpr (kShared) {
        tma_load_2d_multicast(to, tile.b, bar, k, col, kAllCtas);
      } else {
        tma_load_2d<Config::kBOnce>(to, tile.b, bar, k, col);
      }
    }
  } else {
    constexpr u32 kMine = kShared ? Config::kBPanels / Config::kCluster : Config::kBPanels;
#pragma unroll
    for (u32 i = 0; i < kMine; ++i) {
      const u32 p = kShared ? cta * kMine + i : i;
      const i32 up = Config::kGated && p >= kMine / 2 ? tile.b_up - static_cast<i32>(Config::kOutCols) : 0;
      const i32 col = tile.b_col + static_cast<i32>(p * 64) + up;
      if constexpr (kShared) {
        tma_load_2d_multicast(smem.b(stage) + p * kMnPanelBytes, tile.b, bar, col, k, kAllCtas);
      } else {
        tma_load_2d<Config::kBOnce>(smem.b(stage) + p * kMnPanelBytes, tile.b, bar, col, k);
      }
    }
  }
}

// Run by one lane. Hooks: see README.md. `Edges` names the plan's edges `full` and `empty`.
//
// After an abort, and for a tile that stores nothing (a rank may own no rows, and its map then lies over nothing), a lone CTA
// issues no loads and only arrives. A CTA of a cluster goes on loading: its neighbours count on
// its part. That is harmless, because multicast operands lie in this GPU's memory and nothing computed is stored.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_gemm_loader(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks,
                                RingCursor<Config::kStages>& ring) {
  const u32 cta = Config::kCluster > 1 ? cluster_cta_rank() : 0;
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    GemmTile tile = hooks.decode(t);
    chaos_delay(ctx, Agent::Loader, t);
    hooks.before_load(ctx, tile);
#pragma unroll 1
    for (u32 k = 0; k < tile.k_blocks; ++k) {
      hooks.before_step(ctx, tile, static_cast<int>(k));
      mbarrier_wait<Edges::empty>(smem.empty(ring.stage), ring.phase ^ 1);
      if (Config::kCluster == 1 && (ctx.aborted() || !tile.stores())) {
        mbarrier_arrive<Edges::full>(smem.full(ring.stage));
      } else {
        mbarrier_arrive_expect_tx<Edges::full>(smem.full(ring.stage), Config::kABytes + Config::kBLoadedBytes);
        const i32 depth = static_cast<i32>(k * kBlockK);
        sm90_issue_a<Config>(smem, tile, ring.stage, tile.a_k + depth, cta);
        sm90_issue_b<Config>(smem, tile, ring.stage, tile.b_k + depth, cta);
      }
      ring.advance();
    }
  }
}
