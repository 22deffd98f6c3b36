// The agent that fills the ring: one lane, all tiles of its CTA, as many stages ahead as the ring is deep.
// A panel of an operand of which this many M- or N-elements are contiguous: one row for each step of K.
MK_DEVICE constexpr u32 mn_panel_bytes(u32 elements) { return elements * kStepBytes; }

// Of rows and columns that do not exist TMA makes zeros, which takes longer than to load them: boxes of them alone are left out. What is then
// in a stage comes to results that nobody stores.

// Whether a tile loads A in boxes of fewer rows.
template <class Config>
MK_DEVICE bool sm90_ends(const GemmTile& tile) { return tile.valid_rows <= static_cast<i32>(Config::kAEnds); }

// Panels of 64 rows, or of so many columns, that have some; of at most so many.
MK_DEVICE u32 panels_there(i32 valid, u32 each, u32 most) { return valid <= 0 ? 0 : min(most, ceil_div(static_cast<u32>(valid), each)); }

// Bytes of A that come to a stage, in so many parts.
template <class Config>
MK_DEVICE u32 sm90_a_bytes(const GemmTile& tile, u32 parts) {
  if constexpr (Config::kA == ALayout::MMajor) return panels_there(tile.valid_rows, 64, Config::kAPanels) * mn_panel_bytes(64);
  if (tile.valid_rows <= 0) return 0;
  if (parts > 0) return parts * (Config::kPartRows * kStepBytes);
  return sm90_ends<Config>(tile) ? Config::kAEnds * kStepBytes : Config::kALoadedBytes;
}

// Panels of B that come, for each CTA that loads with this one; gated, of gates, and as many of ups.
template <class Config>
MK_DEVICE u32 sm90_b_panels(const GemmTile& tile) {
  return panels_there(tile.valid_cols, Config::kBPanelCols, Config::kBPanels / (Config::kGated ? 2 : 1));
}

// Bytes of B that come to a stage.
template <class Config>
MK_DEVICE u32 sm90_b_bytes(const GemmTile& tile) {
  if constexpr (Config::kB != BLayout::NMajor || Config::kShifted) return Config::kBLoadedBytes;
  return sm90_b_panels<Config>(tile) * (Config::kGated ? 2 : 1) * mn_panel_bytes(Config::kBPanelCols);
}

// Issues A's part of a stage; in so many parts, or, where there are none, as a whole.
template <class Config>
MK_DEVICE void sm90_issue_a(const GemmSmem<Config>& smem, const GemmTile& tile, u32 stage, i32 k, [[maybe_unused]] u32 parts) {
  const u32 bar = smem.full(stage);
  if (tile.valid_rows <= 0) return;
  if constexpr (Config::kA == ALayout::MMajor) {
#pragma unroll
    for (u32 p = 0; p < Config::kAPanels; ++p) {
      if (p >= panels_there(tile.valid_rows, 64, Config::kAPanels)) break;
      const u32 to = smem.a(stage) + p * mn_panel_bytes(64);
      const i32 row = tile.a_row + static_cast<i32>(p * 64);
      if constexpr (Config::kBeside > 1) {
        const u32 part = place_rank<Config>() / Config::kBelow * Config::kABoxRows;
        tma_load_2d_multicast(to + part * 128, tile.a, bar, row, k + static_cast<i32>(part), mates_beside<Config>());
      } else {
        tma_load_2d(to, tile.a, bar, row, k);
      }
    }
    return;
  }
  const bool ends = sm90_ends<Config>(tile);
  const TensorMap* map = Config::kAEnds > 0 && ends ? tile.a_ends : tile.a;
  if constexpr (Config::kBeside > 1) {
    const u32 part = place_rank<Config>() / Config::kBelow * (ends ? Config::kAEnds / Config::kBeside : Config::kABoxRows);
    const u32 to = smem.a(stage) + part * kStepBytes;
    tma_load_2d_multicast(to, map, bar, k, tile.a_row + static_cast<i32>(part), mates_beside<Config>());
  } else if (parts == 0) {
    tma_load_2d(smem.a(stage), map, bar, k, tile.a_row);
  } else if constexpr (Config::kLoadsParts) {
#pragma unroll 1
    for (u32 row = 0; row < parts * Config::kPartRows; row += Config::kPartRows) {
      tma_load_2d(smem.a(stage) + row * kStepBytes, tile.a_part, bar, k, tile.a_row + static_cast<i32>(row));
    }
  }
}

// Columns that a shifted row lies further right than the multiple of 16 bytes before it, as lanes that read several rows like it.
MK_DEVICE u32 shifted_by(u32 row, i32 pitch) { return row * static_cast<u32>(pitch) % 8 + row / 2 * 8; }

// Issues B's part of a stage as its rows lie: of every eighth row a box. Rows behind the last eight whole ones are not there.
template <class Config>
MK_DEVICE void sm90_issue_shifted_b(const GemmSmem<Config>& smem, const GemmTile& tile, u32 stage, i32 k) {
#pragma unroll 1
  for (u32 row = 0; row < kShiftRows; ++row) {
    const i32 from = static_cast<i32>(row) * tile.b_pitch + tile.b_col - static_cast<i32>(shifted_by(row, tile.b_pitch));
    tma_load_2d<Config::kBEvictFirst>(smem.b(stage) + row * Config::kShiftedBoxBytes, tile.b, smem.full(stage), from, k / static_cast<i32>(kShiftRows));
  }
}

// Issues B's part of a stage, box by box. Gated: half the boxes are gates, the other half their ups.
template <class Config>
MK_DEVICE void sm90_issue_b(const GemmSmem<Config>& smem, const GemmTile& tile, u32 stage, i32 k) {
  if constexpr (Config::kShifted) {
    sm90_issue_shifted_b<Config>(smem, tile, stage, k);
    return;
  }
  constexpr bool kAcross = Config::kB == BLayout::NMajor;
  constexpr u32 kBoxes = kAcross ? Config::kBPanels : Config::kBlockN / (Config::kBBoxRows * Config::kBelow);
  constexpr u32 kBoxCols = Config::kBlockN / kBoxes;
  const u32 bar = smem.full(stage);
#pragma unroll
  for (u32 box = 0; box < kBoxes; ++box) {
    if constexpr (kAcross) {
      if (box % (kBoxes / (Config::kGated ? 2 : 1)) >= sm90_b_panels<Config>(tile)) continue;
    }
    const i32 up = Config::kGated && box >= kBoxes / 2 ? tile.b_up - static_cast<i32>(Config::kOutCols) : 0;
    const i32 col = tile.b_col + static_cast<i32>(box * kBoxCols) + up;
    // As many columns take as many bytes in either layout.
    const u32 dst = smem.b(stage) + box * mn_panel_bytes(kBoxCols);
    if constexpr (Config::kBelow > 1) {
      // A part of it, for all.
      const u32 part = place_rank<Config>() % Config::kBelow * Config::kBBoxRows;
      const i32 on = static_cast<i32>(part);
      const u32 to = dst + part * (kAcross ? Config::kBPanelRowBytes : kStepBytes);
      tma_load_2d_multicast(to, tile.b, bar, kAcross ? col : k, kAcross ? k + on : col + on, mates_below<Config>());
    } else if constexpr (Config::kBRank == 3) {
      tma_load_3d<Config::kBEvictFirst>(dst, tile.b, bar, kAcross ? col : k, kAcross ? k : col, tile.b_outer);
    } else {
      tma_load_2d<Config::kBEvictFirst>(dst, tile.b, bar, kAcross ? col : k, kAcross ? k : col);
    }
  }
}

// Brings a part of the sums that a tile goes on with, which have been waited for, in panels as its results leave.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_load_carried(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile,
                                 u32 part, RingCursor<Config::kStages>& ring) {
  constexpr u32 kAcross = Config::kOutColsPerConsumer / Config::kPanelCols;
  const u32 consumer = part % Config::kConsumersPerTile;
  const i32 first_row = hooks.carry_row(tile, static_cast<int>(part / Config::kConsumersPerTile));
#pragma unroll 1
  for (u32 from = 0; from < Config::kPanelsPerTile; from += Config::kCarryPanels) {
    const u32 panels = min(Config::kCarryPanels, Config::kPanelsPerTile - from);
    const u32 bar = smem.full(ring.stage);
    mbarrier_wait<Edges::empty>(smem.empty(ring.stage), ring.phase ^ 1);
    if (ctx.aborted() || !tile.stores()) {
      mbarrier_arrive<Edges::full>(bar);
    } else {
      mbarrier_arrive_expect_tx<Edges::full>(bar, panels * Config::kPanelBytes);
#pragma unroll 1
      for (u32 i = 0; i < panels; ++i) {
        const u32 p = from + i;
        const u32 col = Config::first_col(consumer) + p % kAcross * Config::kPanelCols;
        const u32 row = Config::first_row(consumer) + p / kAcross * 64;
        tma_load_2d(smem.carry_panel(ring.stage, i), tile.carry, bar, tile.c_col + static_cast<i32>(col),
                    first_row + static_cast<i32>(row));
      }
    }
    ring.advance();
  }
}

// Until the consumers have handed a stage back, of all CTAs that load together.
template <class Config, class Edges>
MK_DEVICE void sm90_wait_empty(const GemmSmem<Config>& smem, const RingCursor<Config::kStages>& ring) {
  if constexpr (Config::kLoadsTogether) {
    mbarrier_wait_cluster(smem.empty(ring.stage), ring.phase ^ 1);
  } else {
    mbarrier_wait<Edges::empty>(smem.empty(ring.stage), ring.phase ^ 1);
  }
}

// Run by one lane. Hooks: see README.md. `Edges` names the plan's edges `full` and `empty`.
//
// After an abort, and for a tile that stores nothing (a rank may own no rows, and its map then lies over nothing), it issues no
// loads and only arrives.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_gemm_loader(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks,
                                RingCursor<Config::kStages>& ring, TileCursor& slot) {
  // The others' barriers are there.
  if constexpr (Config::kLoadsTogether) cluster_wait();
#pragma unroll 1
  for (LoaderTiles<GemmSmem<Config>, Edges, Hooks> tiles(ctx, smem, hooks, slot); tiles.more(); tiles.advance()) {
    GemmTile tile = hooks.decode(tiles.t);
    take_part<Config>(tile);
    chaos_delay(ctx, Agent::Loader, tiles.t);
    const u32 parts = tile.a_parts<Config>();
    const u32 bytes = sm90_a_bytes<Config>(tile, parts) + sm90_b_bytes<Config>(tile);
    // Stages that B is on its way to: no more than are free by now, so that a tile whose A is there waits for none. Their A follows whatever
    // happens, an abort included: consumers wait for all of a stage's bytes.
    [[maybe_unused]] u32 ahead = 0;
    if constexpr (Config::kBFirst) {
      if (tile.stores() && !ctx.aborted()) {
        RingCursor<Config::kStages> next = ring;
        while (ahead < min(Config::kStages, tile.k_blocks) && mbarrier_test_wait(smem.empty(next.stage), next.phase ^ 1)) {
          sm90_wait_empty<Config, Edges>(smem, next);
          mbarrier_arrive_expect_tx<Edges::full>(smem.full(next.stage), bytes);
          sm90_issue_b<Config>(smem, tile, next.stage, tile.b_k + static_cast<i32>(ahead * Config::kBlockK));
          next.advance();
          ++ahead;
        }
      }
    }
    hooks.before_load(ctx, tile);
    [[maybe_unused]] u32 part = 0;
    const auto load_carried = [&]([[maybe_unused]] u32 step) {
      if constexpr (Config::kCarried) {
        for (; part < tile.carry_parts<Config>() && tile.carry_step<Config>(part) == step; ++part) {
          sm90_load_carried<Config, Edges>(ctx, smem, hooks, tile, part, ring);
        }
      }
    };
    // The answer takes a step or two, and a CTA that is slow should not have asked early.
    const u32 asks = tile.k_blocks > 8 ? tile.k_blocks - 7 : 1;
#pragma unroll 1
    for (u32 k = 0; k < tile.k_blocks; ++k) {
      hooks.before_step(ctx, tile, static_cast<int>(k));
      load_carried(k);
      if constexpr (Config::kBFirst) {
        if (k < ahead) {
          sm90_issue_a<Config>(smem, tile, ring.stage, tile.a_k + static_cast<i32>(k * Config::kBlockK), parts);
          ring.advance();
          if (k + 1 == asks) tiles.ask();
          continue;
        }
      }
      sm90_wait_empty<Config, Edges>(smem, ring);
      // What a cluster loads together, others may need.
      if (ctx.aborted() || (!Config::kLoadsTogether && !tile.stores())) {
        mbarrier_arrive<Edges::full>(smem.full(ring.stage));
      } else {
        mbarrier_arrive_expect_tx<Edges::full>(smem.full(ring.stage), bytes);
        const i32 depth = static_cast<i32>(k * Config::kBlockK);
        sm90_issue_a<Config>(smem, tile, ring.stage, tile.a_k + depth, parts);
        sm90_issue_b<Config>(smem, tile, ring.stage, tile.b_k + depth);
      }
      ring.advance();
      if (k + 1 == asks) tiles.ask();
    }
    load_carried(tile.k_blocks);
  }
  // Nobody ends before the others have handed back its stages.
  if constexpr (Config::kLoadsTogether) {
#pragma unroll 1
    for (u32 s = 0; s < Config::kStages; ++s) {
      sm90_wait_empty<Config, Edges>(smem, ring);
      ring.advance();
    }
  }
}
