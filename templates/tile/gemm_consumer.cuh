// The agents that multiply: two warpgroups, each half of the tile's rows (or columns), or with every other tile; or three, each a third of
// its rows. Accumulators are in registers.
// Hands a stage back to the loader: one lane of each warp.
template <class Config, class Edges>
MK_DEVICE void sm90_release_stage(const GemmSmem<Config>& smem, u32 stage) {
  if constexpr (Config::kLoadsTogether) {
    // To all that write there.
    const u32 mates = mates_below<Config>() | mates_beside<Config>();
    if (mates >> lane_index() & 1) mbarrier_arrive_mate(cluster_address(smem.empty(stage), lane_index()));
  } else {
    if (lane_index() == 0) mbarrier_arrive<Edges::empty>(smem.empty(stage));
  }
}

// One k step: the wgmmas of one stage, left in flight.
template <class Config>
MK_DEVICE void sm90_mma_step(const GemmSmem<Config>& smem, u32 consumer, u32 stage, bool first,
                             float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr bool kAcrossA = Config::kA == ALayout::MMajor, kAcrossB = Config::kB == BLayout::NMajor;
  constexpr u32 kAStep = kAcrossA ? sm90_mn_major_step_bytes(128) : kKMajorStepBytes;
  constexpr u32 kBStep = kAcrossB ? sm90_mn_major_step_bytes(Config::kBPanelRowBytes) : kKMajorStepBytes;
  // 64 rows of A, or columns of B, take as many bytes in either layout.
  const u32 a_rows = smem.a(stage) + Config::first_row(consumer) * kStepBytes;
  const u64 a = kAcrossA ? sm90_descriptor_mn_major<128>(a_rows, kBlockK) : sm90_descriptor_k_major(a_rows);
  const u32 b_cols = smem.b(stage) + Config::first_col(consumer) * kStepBytes;
  const u64 b = kAcrossB ? sm90_descriptor_mn_major<Config::kBPanelRowBytes>(b_cols, kBlockK) : sm90_descriptor_k_major(b_cols);
#pragma unroll
  for (u32 kk = 0; kk < kBlockK / kWgmmaK; ++kk) {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
      // Offsets are in the descriptor's 16-byte units; the address field cannot overflow inside shared memory.
      const u64 a_offset = (kk * kAStep + m * 64 * kStepBytes) >> 4, b_offset = (kk * kBStep) >> 4;
      if constexpr (Config::kBytes) {
        sm90_wgmma_bytes<Config::kDtype, Config::kDtypeB>(acc[m], a + a_offset, b + b_offset, !(first && kk == 0));
      } else {
        sm90_wgmma<Config::kDtype, Config::kA, Config::kB>(acc[m], a + a_offset, b + b_offset, !(first && kk == 0));
      }
    }
  }
}

// The same with operands swapped: columns of C are rows of the wgmmas, each consumer its own.
template <class Config>
MK_DEVICE void sm90_mma_step_swapped(const GemmSmem<Config>& smem, u32 consumer, u32 stage, bool first,
                                     float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr bool kAcross = Config::kB == BLayout::NMajor;
  constexpr u32 kStep = kAcross ? sm90_mn_major_step_bytes(128) : kKMajorStepBytes;
  const u32 cols = smem.b(stage) + Config::first_col(consumer) * kStepBytes;
  const u64 a = kAcross ? sm90_descriptor_mn_major<128>(cols, kBlockK) : sm90_descriptor_k_major(cols);
  const u64 b = sm90_descriptor_k_major(smem.a(stage));
#pragma unroll
  for (u32 kk = 0; kk < kBlockK / kWgmmaK; ++kk) {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
      const u64 offset = (kk * kStep + m * Config::kMmaCols * kStepBytes) >> 4;
      sm90_wgmma<Config::kDtype, kAcross ? ALayout::MMajor : ALayout::KMajor, BLayout::KMajor>(
          acc[m], a + offset, b + ((kk * kKMajorStepBytes) >> 4), !(first && kk == 0));
    }
  }
}

// Zeros in the place of what lies behind the last `rows` rows of a step's operands, of which each panel has one row after the other: pads of
// both, since 0 times what is no number is none. Each consumer sees to it by itself; another one writes the same zeros.
template <class Config, class Edges>
MK_DEVICE void sm90_zero_behind(const GemmSmem<Config>& smem, u32 consumer, u32 stage, i32 rows) {
  static_assert(Config::kA == ALayout::MMajor && Config::kB == BLayout::NMajor && !Config::kSwapped, "rows of K follow each other");
  const u32 first = rows < 0 ? 0 : static_cast<u32>(rows), thread = threadIdx.x % kWarpgroupThreads;
  // A panel's rows are as long as its swizzle spans, so that whole rows are whole in it, too.
  const auto zero = [&](u32 from, u32 panels, u32 row_bytes) {
    const u32 each = (kBlockK - first) * (row_bytes / 16);
#pragma unroll 1
    for (u32 i = thread; i < panels * each; i += kWarpgroupThreads) {
      st_shared_zeros(from + i / each * (kBlockK * row_bytes) + first * row_bytes + i % each * 16);
    }
  };
  zero(smem.a(stage), Config::kAPanels, 128);
  zero(smem.b(stage), Config::kBPanels, Config::kBPanelRowBytes);
  fence_proxy_async_shared();
  consumer_sync<Edges::turn, Config::kConsumers>(consumer);
}

// A warp's part of the step's shifted columns: pairs along K of column `lane / 4`, and of the eighth behind it, for each wgmma (PTX ISA,
// "Register Fragments for wgmma.mma_async.m64nNk16").
template <class Config>
struct ShiftedStep {
  u32 pairs[kBlockK / kWgmmaK][Config::kMmasPerStep][4];
};

// What is behind the last row of B is 0; its last rows, fewer than eight, are read where they lie.
template <class Config>
MK_DEVICE void load_shifted(const GemmSmem<Config>& smem, const GemmTile& tile, u32 consumer, u32 stage, i32 k0, ShiftedStep<Config>& step) {
  const u32 lane = lane_index(), first = Config::first_col(consumer) + warp_index() % kWarpgroupWarps * 16 + lane / 4;
  const u32 low = lane % 4 * 2;
  u32 at[2];
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    at[i] = smem.b(stage) + (low + i) * Config::kShiftedBoxBytes + (shifted_by(low + i, tile.b_pitch) + first) * kElemBytes;
  }
  const i32 whole = tile.depth / static_cast<i32>(kShiftRows) * static_cast<i32>(kShiftRows);
  const bool ends = k0 + static_cast<i32>(kBlockK) > whole;
#pragma unroll
  for (u32 kk = 0; kk < kBlockK / kWgmmaK; ++kk) {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
      for (u32 part = 0; part < 4; ++part) {
        const u32 row = kk * 2 + part / 2, col = m * 64 + part % 2 * 8;
        const u32 offset = row * Config::kShiftedRowBytes + col * kElemBytes;
        u32 x[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) x[i] = ld_shared_u16(at[i] + offset);
        if (ends) {
#pragma unroll
          for (u32 i = 0; i < 2; ++i) {
            const i32 k = k0 + static_cast<i32>(row * kShiftRows + low + i);
            if (k < whole) continue;
            const bool there = k < tile.depth && static_cast<i32>(first + col) < tile.valid_cols;
            const u64 from = tile.b_data + (static_cast<u64>(k) * static_cast<u64>(tile.b_pitch) + static_cast<u64>(tile.b_col) + first + col) * kElemBytes;
            x[i] = there ? ld_u16(reinterpret_cast<const void*>(from)) : 0;
          }
        }
        step.pairs[kk][m][part] = x[0] | x[1] << 16;
      }
    }
  }
}

// The same with columns of C from registers.
template <class Config>
MK_DEVICE void sm90_mma_step_shifted(const GemmSmem<Config>& smem, u32 stage, bool first, const ShiftedStep<Config>& step,
                                     float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  const u64 b = sm90_descriptor_k_major(smem.a(stage));
#pragma unroll
  for (u32 kk = 0; kk < kBlockK / kWgmmaK; ++kk) {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
      sm90_wgmma_from_registers<Config::kDtype, BLayout::KMajor>(acc[m], step.pairs[kk][m], b + ((kk * kKMajorStepBytes) >> 4), !(first && kk == 0));
    }
  }
}

template <class Config>
MK_DEVICE void sm90_pin_all(float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) sm90_pin_registers(acc[m]);
}

// Ping-pong: the other consumer's first step queues up behind this one's last.
template <class Config, class Edges>
MK_DEVICE void sm90_pass_turn(const GemmSmem<Config>& smem, u32 consumer) {
  if constexpr (Config::kPingPong) {
    if (lane_index() == 0) mbarrier_arrive<Edges::turn>(smem.turn(consumer ^ 1));
  }
}

// Until all steps have been made.
template <class Config>
MK_DEVICE void sm90_mma_end(float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  sm90_wgmma_wait<0>();
  sm90_pin_all<Config>(acc);
}

// Takes a part of the sums that a tile goes on with, stage by stage: adds its own, and lets the other consumer's pass.
template <class Config, class Edges>
MK_DEVICE void sm90_take_carried(const GemmSmem<Config>& smem, u32 consumer, u32 part, RingCursor<Config::kStages>& ring,
                                 float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kAcross = Config::kOutColsPerConsumer / Config::kPanelCols;
  const bool mine = Config::kPingPong || part % Config::kConsumersPerTile == consumer;
#pragma unroll
  for (u32 from = 0; from < Config::kPanelsPerTile; from += Config::kCarryPanels) {
    mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    if (mine) {
#pragma unroll
      for (u32 i = 0; i < Config::kCarryPanels; ++i) {
        const u32 p = from + i;
        if (p < Config::kPanelsPerTile) {
          add_panel<Config>(smem.carry_panel(ring.stage, i), &acc[p / kAcross][p % kAcross * Config::kPanelCols / 2]);
        }
      }
    }
    // One lane hands the stage back for all, which have read it.
    __syncwarp();
    sm90_release_stage<Config, Edges>(smem, ring.stage);
    ring.advance();
  }
  sm90_pin_all<Config>(acc);
}

// The same where sums of a step are added to f32 registers: those of the tensor cores keep 14 bits or so. 64 rows at a time, or some of
// their columns; the other consumer multiplies meanwhile.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_promoted_steps(const GemmSmem<Config>& smem, [[maybe_unused]] const Hooks& hooks, [[maybe_unused]] const GemmTile& tile,
                                   u32 consumer, u32 from, u32 to, RingCursor<Config::kStages>& ring,
                                   float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kPart = Config::kPartCols / 2, kAcross = Config::kMmaN / Config::kPartCols;
  float part[kPart];
  if (from == 0) {
#pragma unroll
    for (u32 i = 0; i < Config::kMmasPerStep * Config::kAccumulators; ++i) acc[i / Config::kAccumulators][i % Config::kAccumulators] = 0.0f;
  }
  [[maybe_unused]] StepFactors<Config> factors;
  if constexpr (Config::kStepScaled) {
    // Factors have come when rows have: not before.
    if (from < to) mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    factors.begin(smem, hooks, tile, consumer, from);
  }
#pragma unroll 1
  for (u32 k = from; k < to; ++k) {
    mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    const u64 a = sm90_descriptor_k_major(smem.a(ring.stage) + Config::first_row(consumer) * kStepBytes);
    const u64 b = sm90_descriptor_k_major(smem.b(ring.stage) + Config::first_col(consumer) * kStepBytes);
#pragma unroll
    for (u32 p = 0; p < Config::kMmasPerStep * kAcross; ++p) {
      const u32 m = p / kAcross, n = p % kAcross;
      sm90_pin_registers(part);
      sm90_wgmma_fence();
#pragma unroll
      for (u32 kk = 0; kk < kStepBytes / kKMajorStepBytes; ++kk) {
        const u64 a_offset = (kk * kKMajorStepBytes + m * 64 * kStepBytes) >> 4;
        const u64 b_offset = (kk * kKMajorStepBytes + n * Config::kPartCols * kStepBytes) >> 4;
        sm90_wgmma_bytes<Config::kDtype, Config::kDtypeB>(part, a + a_offset, b + b_offset, kk > 0);
      }
      sm90_wgmma_commit();
      // While the first part multiplies.
      if constexpr (Config::kStepScaled) {
        if (p == 0) factors.step(hooks, tile, consumer, k, k - from, k + 1 < to);
      }
      [[maybe_unused]] Pair factor;
      if constexpr (Config::kStepScaled) factor = factors.template of_part<Hooks>(n, k - from);
      sm90_wgmma_wait<0>();
      sm90_pin_registers(part);
      // The last stage goes back behind the loop.
      if (p + 1 == Config::kMmasPerStep * kAcross && k + 1 < to) sm90_release_stage<Config, Edges>(smem, ring.stage);
#pragma unroll
      for (u32 i = 0; i < kPart; ++i) {
        float& sum = acc[m][n * kPart + i];
        if constexpr (Config::kStepScaled) {
          sum = fmaf(part[i], i / 2 % 2 == 0 ? factor.x0 : factor.x1, sum);
        } else {
          sum += part[i];
        }
      }
    }
    ring.advance();
  }
}

// Steps `from` to `to` of a tile. One stays in flight: a stage goes back when the step after it has been issued.
template <class Config, class Edges>
MK_DEVICE void sm90_mma_steps(const GemmSmem<Config>& smem, u32 consumer, u32 from, u32 to, [[maybe_unused]] i32 depth,
                              RingCursor<Config::kStages>& ring, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
#pragma unroll 1
  for (u32 k = from; k < to; ++k) {
    mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    if constexpr (Config::kRaggedDepth) {
      const i32 left = depth - static_cast<i32>(k * kBlockK);
      if (left < static_cast<i32>(kBlockK)) sm90_zero_behind<Config, Edges>(smem, consumer, ring.stage, left);
    }
    sm90_wgmma_fence();
    if constexpr (Config::kSwapped) {
      sm90_mma_step_swapped<Config>(smem, consumer, ring.stage, k == 0, acc);
    } else {
      sm90_mma_step<Config>(smem, consumer, ring.stage, k == 0, acc);
    }
    sm90_wgmma_commit();
    sm90_wgmma_wait<1>();
    if (k > from) sm90_release_stage<Config, Edges>(smem, ring.previous_stage());
    ring.advance();
  }
}

// The same of shifted columns. A step's are in registers before its wgmmas, which read them until they have ended.
template <class Config, class Edges>
MK_DEVICE void sm90_shifted_steps(const GemmSmem<Config>& smem, const GemmTile& tile, u32 consumer, u32 from, u32 to,
                                  RingCursor<Config::kStages>& ring, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  if (from == to) return;
  // Two of them, each with a name: one is read while the other is filled.
  ShiftedStep<Config> even, odd;
  const auto load = [&](u32 k, ShiftedStep<Config>& step) {
    mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    load_shifted<Config>(smem, tile, consumer, ring.stage, tile.b_k + static_cast<i32>(k * kBlockK), step);
  };
  const auto multiply = [&](u32 k, const ShiftedStep<Config>& step, ShiftedStep<Config>& next) {
    sm90_wgmma_fence();
    sm90_mma_step_shifted<Config>(smem, ring.stage, k == 0, step, acc);
    sm90_wgmma_commit();
    ring.advance();
    // The last stage goes back behind the loop.
    if (k + 1 < to) load(k + 1, next);
    sm90_wgmma_wait<0>();
    if (k + 1 < to) sm90_release_stage<Config, Edges>(smem, ring.previous_stage());
  };
  load(from, even);
#pragma unroll 1
  for (u32 k = from; k < to; k += 2) {
    multiply(k, even, odd);
    if (k + 1 < to) multiply(k + 1, odd, even);
  }
}

template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_steps(const GemmSmem<Config>& smem, [[maybe_unused]] const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 from, u32 to,
                          RingCursor<Config::kStages>& ring, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  if constexpr (Config::kPromotes) {
    sm90_promoted_steps<Config, Edges>(smem, hooks, tile, consumer, from, to, ring, acc);
  } else if constexpr (Config::kShifted) {
    sm90_shifted_steps<Config, Edges>(smem, tile, consumer, from, to, ring, acc);
  } else {
    sm90_mma_steps<Config, Edges>(smem, consumer, from, to, tile.depth, ring, acc);
  }
}

// The same of a tile of which this consumer has no rows: stages go back as they come, the last one only if nobody borrows it.
template <class Config, class Edges>
MK_DEVICE void sm90_pass_steps(const GemmSmem<Config>& smem, u32 steps, bool borrowed, RingCursor<Config::kStages>& ring) {
#pragma unroll 1
  for (u32 k = 0; k < steps; ++k) {
    mbarrier_wait<Edges::full>(smem.full(ring.stage), ring.phase);
    // One lane hands the stage back for all, which have seen it full.
    __syncwarp();
    if (k + 1 < steps || !borrowed) sm90_release_stage<Config, Edges>(smem, ring.stage);
    ring.advance();
  }
}

// The main loop of one tile, and the sums that it goes on with, between its steps or behind them.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_mma_tile(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                             RingCursor<Config::kStages>& ring, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  static_assert(kCarriesInOrder<Config>, "loader and consumers take stages in one order");
  sm90_pin_all<Config>(acc);
  const u32 parts = Config::kCarried ? tile.carry_parts<Config>() : 0;
  u32 part = 0, done = 0;
  if constexpr (Config::kCarried && !Config::kCarryLast) {
#pragma unroll 1
    for (; part < parts; ++part) {
      const u32 step = tile.carry_step<Config>(part);
      if (step >= tile.k_blocks) break;
      sm90_steps<Config, Edges>(smem, hooks, tile, consumer, done, step, ring, acc);
      // Also where there was no step: ptxas wants to see it.
      sm90_mma_end<Config>(acc);
      if (step > done) sm90_release_stage<Config, Edges>(smem, ring.previous_stage());
      sm90_take_carried<Config, Edges>(smem, consumer, part, ring, acc);
      done = step;
    }
  }
  sm90_steps<Config, Edges>(smem, hooks, tile, consumer, done, tile.k_blocks, ring, acc);
  const bool ends = part == parts;
  // Not before the stages have come that this one still looks at.
  if (ends) sm90_pass_turn<Config, Edges>(smem, consumer);
  sm90_mma_end<Config>(acc);
  // Tiles of more steps than one, which those with a borrowed stage are, have taken all by now.
  if constexpr (Config::kBorrowedPanels == 0) sm90_release_stage<Config, Edges>(smem, ring.previous_stage());
  if constexpr (Config::kScaled) apply_scales<Config>(hooks, tile, consumer, acc);
  if constexpr (Config::kCarryLast) apply_epilogue<Config>(hooks, tile, consumer, acc);
  if constexpr (Config::kCarried && Config::kBorrowedPanels == 0) {
#pragma unroll 1
    for (; part < parts; ++part) sm90_take_carried<Config, Edges>(smem, consumer, part, ring, acc);
    if (!ends) sm90_pass_turn<Config, Edges>(smem, consumer);
  }
}

// Whether the next tile is this consumer's. Another's is skipped; its own waits until the other has issued all of the tile before. So
// stages are looked at in order: the parity of a stage that is some laps away would say nothing.
template <class Config, class Edges, class Hooks>
MK_DEVICE bool sm90_take_turn(const GemmSmem<Config>& smem, const Hooks& hooks, u32 t, u32 consumer,
                              RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging) {
  const bool mine = staging.consumer() == consumer;
  if (mine) {
    // The first tile of all waits for nobody: the phase before a barrier's first counts as complete.
    mbarrier_wait<Edges::turn>(smem.turn(consumer), (staging.tile / Config::kConsumers + 1 + consumer) % 2);
  } else {
    ring.skip(hooks.steps(t, Config::kCarrySteps));
  }
  ++staging.tile;
  return mine;
}

// Run by all threads of consumer warpgroup `consumer`. `Edges` names `full`, `empty`, `staging_full`, `staging_free` and `turn`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_gemm_consumer(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, u32 consumer,
                                  RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging, TileCursor& slot) {
  float acc[Config::kMmasPerStep][Config::kAccumulators];
  [[maybe_unused]] u32 shared_tiles = 0;
#pragma unroll 1
  for (ReaderTiles<GemmSmem<Config>, Edges, Hooks, true> tiles(smem, hooks, slot); tiles.more(); tiles.advance()) {
    if constexpr (Config::kPingPong) {
      if (!sm90_take_turn<Config, Edges>(smem, hooks, tiles.t, consumer, ring, staging)) continue;
    }
    GemmTile tile = hooks.decode(tiles.t);
    take_part<Config>(tile);
    chaos_delay(ctx, Agent::Consumer, tiles.t);
    if constexpr (Config::kPassesSteps) {
      // Nobody has anything to store, and nobody is told.
      if (!tile.stores()) {
        sm90_pass_steps<Config, Edges>(smem, tile.steps<Config>(), false, ring);
        continue;
      }
    }
    if (Config::kPassesSteps && tile.valid_rows <= static_cast<i32>(Config::first_row(consumer))) {
      sm90_pass_steps<Config, Edges>(smem, tile.steps<Config>(), Config::kBorrowedPanels > 0, ring);
    } else {
      sm90_mma_tile<Config, Edges>(smem, hooks, tile, consumer, ring, acc);
    }
    if constexpr (Config::kStepScaled && Config::kShortRows) {
      // Looked up again: sums and factors leave no registers for where results go.
      u32 again = tiles.t;
      asm volatile("" : "+r"(again));
      tile = hooks.template decode<true>(again);
      take_part<Config>(tile);
    }
    if constexpr (Config::kGateBias) apply_gate_bias<Config>(hooks, tile, consumer, acc);
    if constexpr (Config::kSaves > 0) {
      if (!ctx.aborted()) save_tile<0, Config, Edges>(smem, hooks, tile, consumer, staging.mine, acc);
    }
    if constexpr (Config::kOnlyTile) {
      send_only_tile<Config, Edges>(ctx, smem, hooks, tile, consumer, staging.mine, acc);
    } else if constexpr (Config::kStore == StorePath::Tma && Config::kSwapped) {
      stage_swapped_tile<Config, Edges>(smem, hooks, tile, consumer, ring, staging, acc);
    } else if constexpr (Config::kBorrowsAll) {
      stage_tile_of_three<Config, Edges>(smem, hooks, tile, consumer, ring, staging, acc);
    } else if constexpr (Config::kStore == StorePath::Tma) {
      stage_tile<Config, Edges>(smem, hooks, tile, consumer, ring, staging, acc);
    } else if constexpr (Config::kSwapped && Config::kCluster == 1) {
      store_swapped_direct<Config, Edges>(ctx, smem, hooks, tile, consumer, staging.mine, acc);
    } else if constexpr (Config::kCluster > 1) {
      store_tile_shared<Config, Edges>(ctx, smem, hooks, tile, consumer, staging.mine, shared_tiles, tiles.last(), acc);
    } else {
      store_tile_direct<Config, Edges>(ctx, smem, hooks, tile, consumer, staging.mine, acc);
    }
  }
}
