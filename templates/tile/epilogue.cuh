// What a tile's results go through in registers, and how they leave them.
//
// wgmma leaves a 64-row block like this (PTX ISA, "Register Fragments", matrix D): warp w of the warpgroup holds rows
// 16w..16w+15; lane l holds rows l / 4 and l / 4 + 8, and of every 8 columns the pair starting at (l % 4) * 2.

// A pair of neighbouring elements of a row-major tensor, widened; zero where there is no element.
struct Pair {
  float x0, x1;
};
// `kEven` (16-bit): rows are multiples of four bytes and hold an even number of elements, so that a pair is one aligned word, there
// or not. One predicated load per pair keeps the unrolled epilogue small, and its compile time.
template <Dtype kDtype, bool kEven>
MK_DEVICE Pair load_pair(u64 address, i32 cols_left) {
  const u16* e = reinterpret_cast<const u16*>(address);
  if constexpr (kDtype == Dtype::F32) {
    const u32* word = reinterpret_cast<const u32*>(address);
    return Pair{__uint_as_float(cols_left >= 1 ? ld_u32(word) : 0), __uint_as_float(cols_left >= 2 ? ld_u32(word + 1) : 0)};
  } else if constexpr (kEven) {
    const u32 packed = cols_left >= 2 ? ld_u32(e) : 0;
    return Pair{unpack_lo<kDtype>(packed), unpack_hi<kDtype>(packed)};
  } else {
    const u16 x0 = cols_left >= 1 ? ld_u16(e) : 0;
    const u16 x1 = cols_left >= 2 ? ld_u16(e + 1) : 0;
    return Pair{widen<kDtype>(x0), widen<kDtype>(x1)};
  }
}

// This thread's first row in the tile, of 64-row block `m`.
template <class Config>
MK_DEVICE u32 fragment_row(u32 consumer, u32 m) {
  return Config::first_row(consumer) + m * 64 + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4;
}
template <class Config>
MK_DEVICE u32 fragment_row_anew(u32 consumer, u32 m) {
  const u32 thread = thread_anew();
  return Config::first_row(consumer) + m * 64 + thread / 32 % kWarpgroupWarps * 16 + thread % 32 / 4;
}

// A factor of a vector, from those of the tile on; 0 where there is none.
MK_DEVICE float load_factor(u64 factors, u32 at, i32 valid) {
  return static_cast<i32>(at) < valid ? __uint_as_float(ld_u32(reinterpret_cast<const u32*>(factors) + at)) : 0.0f;
}

// The product's rows and columns times their factors.
template <class Config, class Hooks>
MK_DEVICE void apply_scales(const Hooks& hooks, const GemmTile& tile, u32 consumer,
                            float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  float rows[Config::kMmasPerStep][2];
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 row = fragment_row<Config>(consumer, m) + half * 8;
      rows[m][half] = 1.0f;
      if constexpr (Hooks::kScalesRows) rows[m][half] = load_factor(hooks.row_scales(tile), row, tile.valid_rows);
    }
  }
  u32 first = Config::first_col(consumer) + lane_index() % 4 * 2;
  // Or the compiler keeps what it computes of each column here for the epilogue, in registers that there are not.
  asm volatile("" : "+r"(first));
#pragma unroll
  for (u32 j = 0; j < Config::kAccumulators / 4; ++j) {
    float x0 = 1.0f, x1 = 1.0f;
    if constexpr (Hooks::kScalesColumns) {
      x0 = load_factor(hooks.column_scales(tile), first + j * 8, tile.valid_cols);
      x1 = load_factor(hooks.column_scales(tile), first + j * 8 + 1, tile.valid_cols);
    }
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        float* x = &acc[m][j * 4 + half * 2];
        x[0] = x[0] * rows[m][half] * x0;
        x[1] = x[1] * rows[m][half] * x1;
      }
    }
  }
}

// Gates and ups plus their vectors.
template <class Config, class Hooks>
MK_DEVICE void apply_gate_bias(const Hooks& hooks, const GemmTile& tile, u32 consumer,
                               float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  u32 first = Config::first_col(consumer) + lane_index() % 4 * 2;
  // As for factors.
  asm volatile("" : "+r"(first));
#pragma unroll
  for (u32 j = 0; j < Config::kAccumulators / 8; ++j) {
    const Pair gates = hooks.template gate_bias<false>(tile, first + j * 8), ups = hooks.template gate_bias<true>(tile, first + j * 8);
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        float* x = &acc[m][j * 4 + half * 2];
        x[0] += gates.x0;
        x[1] += gates.x1;
        x[Config::kAccumulators / 2] += ups.x0;
        x[Config::kAccumulators / 2 + 1] += ups.x1;
      }
    }
    // Of eight bits, sums leave registers for some loads in flight, not for all.
    if constexpr (Config::kStepScaled) {
      if (j % 4 == 3) asm volatile("" : "+r"(first) : "f"(acc[0][j * 4]));
    }
  }
}

// Gated: the accumulator of a gate's column takes in its up, which lies half the tile further in the same thread.
template <class Config>
MK_DEVICE void apply_gate(float* acc) {
  if constexpr (Config::kGated) acc[0] = silu(acc[0]) * acc[Config::kAccumulators / 2];
}

// All accumulators of a tile through the plan's elementwise chain, before anything is added to them.
template <class Config, class Hooks>
MK_DEVICE void apply_epilogue(const Hooks& hooks, const GemmTile& tile, u32 consumer,
                              float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
    for (u32 i = 0; i < Config::kAccumulators / 2; ++i) {
      const u32 row = fragment_row<Config>(consumer, m) + i % 2 * 8;
      const u32 col = Config::first_col(consumer) + i / 2 * 8 + lane_index() % 4 * 2;
      hooks.epilogue(tile, row, col, acc[m][2 * i], acc[m][2 * i + 1]);
    }
  }
}

// Packs eight accumulators, the 16 columns from `col` on, for one stmatrix, through the plan's elementwise chain; where tiles go on with
// sums, they have been through it before, if there is one.
template <class Config, class Hooks>
MK_DEVICE void finish_16_columns(const Hooks& hooks, const GemmTile& tile, u32 row, u32 col, float* acc, u32 (&out)[4]) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (Config::kSaves == 0) {
      apply_gate<Config>(acc + 2 * i);
      apply_gate<Config>(acc + 2 * i + 1);
    }
    const u32 r = row + i % 2 * 8, c = col + i / 2 * 8 + lane_index() % 4 * 2;
    if constexpr (!Config::kCarried) hooks.epilogue(tile, r, c, acc[2 * i], acc[2 * i + 1]);
    if constexpr (Config::kOut != Dtype::F32) out[i] = pack2<Config::kOut>(acc[2 * i], acc[2 * i + 1]);
  }
}

// Where a panel under the 128-byte swizzle, 64 rows of 32 fp32 results, has a pair of this thread's: of its upper or lower row, the
// `j`th.
MK_DEVICE u32 f32_panel_pair(u32 panel, u32 half, u32 j) {
  const u32 row = warp_index() % kWarpgroupWarps * 16 + lane_index() / 4 + half * 8;
  const u32 chunk = (j * 2 + lane_index() % 4 / 2) ^ (row % 8);
  return panel + row * 128 + lane_index() % 2 * 8 + chunk * 16;
}

// 64 rows of 32 fp32 results, 16 accumulators of each thread, to a panel.
MK_DEVICE void stage_f32_panel(u32 panel, const float* acc) {
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      st_shared_f32x2(f32_panel_pair(panel, half, j), acc[j * 4 + half * 2], acc[j * 4 + half * 2 + 1]);
    }
  }
}

// Where a panel of 64 rows has 16 bytes of a row.
template <class Config>
MK_DEVICE u32 panel_chunk(u32 panel, u32 row, u32 chunk) {
  constexpr u32 kRowBytes = Config::kPanelRowBytes;  // also the swizzle's span
  // The swizzle XORs the 16-byte chunk with the 128-byte line (PTX ISA, "Swizzling modes"): of 8 lines, or of 4.
  return panel + row * kRowBytes + (chunk ^ (kRowBytes == 128 ? row % 8 : row / 2 % 4)) * 16;
}

// Where a panel, 64 rows of 16-bit results, has this lane's row of a warp's `j`th 16 columns, as stmatrix and ldmatrix take it:
// lanes 0-15 name the 16 rows of the left 8 columns, lanes 16-31 those of the right.
template <class Config>
MK_DEVICE u32 panel_block(u32 panel, u32 j) {
  const u32 row = warp_index() % kWarpgroupWarps * 16 + lane_index() % 16;
  return panel_chunk<Config>(panel, row, j * 2 + lane_index() / 16);
}

// 64 rows of a panel's `j`th 16 columns, 16-bit results, four words of each thread.
template <class Config>
MK_DEVICE void stage_16_columns(u32 panel, u32 j, const u32 (&packed)[4]) {
  stmatrix_x4(panel_block<Config>(panel, j), packed[0], packed[1], packed[2], packed[3]);
}

// 64 rows of 16-bit results to a panel.
template <class Config, u32 kPairs>
MK_DEVICE void stage_panel(u32 panel, const u32 (&packed)[kPairs][4]) {
#pragma unroll
  for (u32 j = 0; j < kPairs; ++j) stage_16_columns<Config>(panel, j, packed[j]);
}

// Swapped, a thread has pairs of rows: of rows `r` and `r + 1` of column `c`, and the lane four further of column `c + 1`. Afterwards each has
// a pair of columns, one of row `r`, the other of the row behind it.
MK_DEVICE void pair_columns(float& x0, float& x1) {
  const bool odd = lane_index() / 4 % 2 == 1;
  const float got = __shfl_xor_sync(0xffffffffu, odd ? x0 : x1, 4);
  if (odd) {
    x0 = got;
  } else {
    x1 = got;
  }
}
// Where that pair is, of each eight rows, and of each eight columns.
MK_DEVICE u32 paired_row() { return lane_index() % 4 * 2 + lane_index() / 4 % 2; }
MK_DEVICE u32 paired_col() { return lane_index() / 8 * 2; }

// Swapped: up to 64 rows of the panel's 64 columns, from `row` and `col` of the tile on; rows lie along the accumulators of a wgmma, columns
// along its rows. `ups`: gated, those of the same results.
template <class Config, u32 kRows, class Hooks>
MK_DEVICE void stage_swapped(const Hooks& hooks, const GemmTile& tile, u32 panel, u32 row, u32 col, const float* first,
                             [[maybe_unused]] const float* ups) {
#pragma unroll
  for (u32 g = 0; g < kRows / 16; ++g) {
    float x[8];
#pragma unroll
    for (u32 e = 0; e < 8; ++e) {
      x[e] = first[g * 8 + e];
      if constexpr (Config::kGated) x[e] = silu(x[e]) * ups[g * 8 + e];
    }
    if constexpr (Config::kChained) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        pair_columns(x[2 * i], x[2 * i + 1]);
        const u32 r = g * 16 + i / 2 * 8 + paired_row(), chunk = warp_index() % kWarpgroupWarps * 2 + i % 2;
        hooks.epilogue(tile, row + r, col + chunk * 8 + paired_col(), x[2 * i], x[2 * i + 1]);
        // The 32 words of a warp lie in as many banks.
        st_shared(panel_chunk<Config>(panel, r, chunk) + paired_col() * 2, pack2<Config::kOut>(x[2 * i], x[2 * i + 1]));
      }
    } else {
      const u32 r = g * 16 + lane_index() / 16 * 8 + lane_index() % 8;
      const u32 chunk = warp_index() % kWarpgroupWarps * 2 + lane_index() / 8 % 2;
      stmatrix_x4_trans(panel_chunk<Config>(panel, r, chunk), pack2<Config::kOut>(x[0], x[1]), pack2<Config::kOut>(x[2], x[3]),
                        pack2<Config::kOut>(x[4], x[5]), pack2<Config::kOut>(x[6], x[7]));
    }
  }
}

// Swapped: a consumer's `p`th panel.
template <class Config, class Hooks>
MK_DEVICE void stage_swapped_panel(const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 panel, u32 p,
                                   const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kLast = Config::kBlockM - (Config::kPanelsDown - 1) * 64;
  const u32 down = p % Config::kPanelsDown, across = p / Config::kPanelsDown;
  const float* first = &acc[across][down * 32];
  const float* ups = &acc[across + (Config::kGated ? 1 : 0)][down * 32];
  const u32 row = down * 64, col = Config::first_col(consumer) + across * 64;
  if (down + 1 == Config::kPanelsDown) {
    stage_swapped<Config, kLast>(hooks, tile, panel, row, col, first, ups);
  } else {
    stage_swapped<Config, 64>(hooks, tile, panel, row, col, first, ups);
  }
}

// Adds 64 rows of results that lie in a panel, as it would be staged, to this thread's accumulators of those columns.
template <class Config>
MK_DEVICE void add_panel(u32 panel, float* acc) {
  if constexpr (Config::kOut == Dtype::F32) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        float x0, x1;
        ld_shared_f32x2(f32_panel_pair(panel, half, j), x0, x1);
        acc[j * 4 + half * 2] += x0;
        acc[j * 4 + half * 2 + 1] += x1;
      }
    }
  } else {
#pragma unroll
    for (u32 j = 0; j < Config::kPanelCols / 16; ++j) {
      u32 packed[4];
      ldmatrix_x4(panel_block<Config>(panel, j), packed);
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        acc[j * 8 + 2 * i] += unpack_lo<Config::kOut>(packed[i]);
        acc[j * 8 + 2 * i + 1] += unpack_hi<Config::kOut>(packed[i]);
      }
    }
  }
}

// What was staged is there for the storer; one arrival of each warp.
template <class Edges>
MK_DEVICE void hand_over_panels(u32 bar) {
  fence_proxy_async_shared();
  __syncwarp();
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(bar);
}

// Sends one panel: whole, or row by row where the tile's own rows end inside it, since the box would write on into rows
// that belong to another task. A row of 128 bytes lies in the swizzle wherever it starts; a shorter one could not be
// addressed.
template <class Config>
MK_DEVICE void send_panel(const GemmTile& tile, u32 panel, i32 col, i32 row) {
  const i32 rows = tile.valid_rows - row;
  if (rows <= 0 || tile.valid_cols <= col) return;
  if constexpr (Config::kSwapped && Config::kBlockM % 64 != 0) {
    if (row + 64 > static_cast<i32>(Config::kBlockM)) {
      tma_store_2d(tile.c_line, panel, tile.c_col + col, tile.c_row + row);
      return;
    }
  }
  // Swapped tiles end where the tensor does.
  if constexpr (Config::kPanelRowBytes == 128 && !Config::kClipped && !Config::kSwapped) {
    if (rows < 64) {
#pragma unroll 1
      for (i32 r = 0; r < rows; ++r) {
        tma_store_2d(tile.c_line, panel + r * Config::kPanelRowBytes, tile.c_col + col, tile.c_row + row + r);
      }
      return;
    }
  }
  tma_store_2d(tile.c, panel, tile.c_col + col, tile.c_row + row);
}

// A consumer's `p`th panel of a tile.
template <class Config>
MK_DEVICE void send_panel_of(const GemmTile& tile, u32 consumer, u32 p, u32 panel) {
  if constexpr (Config::kSwapped) {
    send_panel<Config>(tile, panel, static_cast<i32>(Config::first_col(consumer) + p / Config::kPanelsDown * 64),
                       static_cast<i32>(p % Config::kPanelsDown * 64));
    return;
  }
  constexpr u32 kAcross = Config::kOutColsPerConsumer / Config::kPanelCols;
  send_panel<Config>(tile, panel, static_cast<i32>(Config::first_col(consumer) + p % kAcross * Config::kPanelCols),
                     static_cast<i32>(Config::first_row(consumer) + p / kAcross * 64));
}

// Registers to panels, for the storer. Staging is small, so that the ring can keep its stages: what fills more begins with the
// borrowed ones; where those do not suffice, it waits until panels have been read.
template <class Config, class Edges, class Hooks>
MK_DEVICE void stage_tile(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                          const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging,
                          float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kPairs = Config::kPanelCols / 16;  // stmatrix per panel
  constexpr u32 kAcross = Config::kOutColsPerConsumer / Config::kPanelCols;
  RingCursor<Config::kPanels>& mine = staging.mine;
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
    const u32 row = fragment_row<Config>(consumer, m);
#pragma unroll
    for (u32 n = 0; n < kAcross; ++n) {
      u32 packed[kPairs][4];
      float* const first = &acc[m][n * Config::kPanelCols / 2];
#pragma unroll
      for (u32 j = 0; j < kPairs; ++j) {
        const u32 g = n * kPairs + j;
        finish_16_columns<Config>(hooks, tile, row, Config::first_col(consumer) + g * 16, first + j * 8, packed[j]);
      }
      const u32 p = m * kAcross + n;
      const bool borrowed = p + 1 <= Config::kBorrowedPanels;  // not `<`: there may be none, and nothing is below that
      if (!borrowed) mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, mine.stage), mine.phase ^ 1);
      const u32 panel = borrowed ? smem.borrowed_panel(ring, consumer, p) : smem.panel(consumer, mine.stage);
      if constexpr (Config::kOut == Dtype::F32) {
        stage_f32_panel(panel, first);
      } else {
        stage_panel<Config>(panel, packed);
      }
      if (!borrowed) {
        hand_over_panels<Edges>(smem.staging_full(consumer, mine.stage));
        mine.advance();
      } else if (p + 1 == Config::kBorrowedPanels) {
        hand_over_panels<Edges>(smem.borrowed_full(consumer));
      }
    }
  }
}

// The same of swapped tiles.
template <class Config, class Edges, class Hooks>
MK_DEVICE void stage_swapped_tile(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                                  const RingCursor<Config::kStages>& ring, GemmStaging<Config::kPanels>& staging,
                                  const float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  RingCursor<Config::kPanels>& mine = staging.mine;
#pragma unroll
  for (u32 p = 0; p < Config::kPanelsPerTile; ++p) {
    const bool borrowed = p + 1 <= Config::kBorrowedPanels;
    if (!borrowed) mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, mine.stage), mine.phase ^ 1);
    const u32 panel = borrowed ? smem.borrowed_panel(ring, consumer, p) : smem.panel(consumer, mine.stage);
    stage_swapped_panel<Config>(hooks, tile, consumer, panel, p, acc);
    if (!borrowed) {
      hand_over_panels<Edges>(smem.staging_full(consumer, mine.stage));
      mine.advance();
    } else if (p + 1 == Config::kBorrowedPanels) {
      hand_over_panels<Edges>(smem.borrowed_full(consumer));
    }
  }
}

// The threads of one consumer, of so many.
template <u32 kEdge, u32 kConsumers>
MK_DEVICE void consumer_sync(u32 consumer) {
  if (consumer == 0) {
    named_barrier_sync<kEdge, 1, kWarpgroupThreads>();
  } else if (kConsumers == 2 || consumer == 1) {
    named_barrier_sync<kEdge, 2, kWarpgroupThreads>();
  } else {
    named_barrier_sync<kEdge, 3, kWarpgroupThreads>();
  }
}

// Of a barrier among the threads of one agent: its program order, and no edge of a plan.
constexpr u32 kNoEdge = 0xffffffffu;

// A CTA's only tile: nothing is loaded behind it, and its panels are all there at once. Each consumer sends its own.
template <class Config, class Edges, class Hooks>
MK_DEVICE void send_only_tile(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                              RingCursor<Config::kPanels>& staging, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr u32 kPairs = Config::kPanelCols / 16, kAcross = Config::kOutColsPerConsumer / Config::kPanelCols;
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  const bool sends = threadIdx.x % kWarpgroupThreads == 0 && !ctx.aborted();
  if constexpr (Config::kSwapped) {
#pragma unroll
    for (u32 p = 0; p < Config::kPanelsPerTile; ++p) {
      const u32 panel = smem.only_panel(consumer, p);
      stage_swapped_panel<Config>(hooks, tile, consumer, panel, p, acc);
      fence_proxy_async_shared();
      consumer_sync<kNoEdge, Config::kConsumers>(consumer);
      if (sends) send_panel_of<Config>(tile, consumer, p, panel);
    }
  } else {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
      const u32 row = fragment_row<Config>(consumer, m);
#pragma unroll
      for (u32 n = 0; n < kAcross; ++n) {
        u32 packed[kPairs][4];
        float* const first = &acc[m][n * Config::kPanelCols / 2];
#pragma unroll
        for (u32 j = 0; j < kPairs; ++j) {
          finish_16_columns<Config>(hooks, tile, row, Config::first_col(consumer) + (n * kPairs + j) * 16, first + j * 8, packed[j]);
        }
        const u32 p = m * kAcross + n, panel = smem.only_panel(consumer, p);
        if constexpr (Config::kOut == Dtype::F32) {
          stage_f32_panel(panel, first);
        } else {
          stage_panel<Config>(panel, packed);
        }
        fence_proxy_async_shared();
        consumer_sync<kNoEdge, Config::kConsumers>(consumer);
        if (sends) send_panel_of<Config>(tile, consumer, p, panel);
      }
    }
  }
  if (threadIdx.x % kWarpgroupThreads == 0) {
    bulk_commit();
    bulk_wait_read<0>();
  }
  __syncwarp();
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(smem.staging_full(consumer, staging.stage));
  staging.advance();
}

// A matrix of the caller's, from the tile's first row and column on.
struct Lines {
  u64 data;
  u64 pitch_bytes;
};
// What an epilogue saves, and whether its rows are multiples of 16 bytes, or of two elements. `aside`: what comes before it is done to a copy.
struct SavedAs {
  Dtype dtype;
  bool wide;
  bool even;
  bool aside = false;
};

// This warp's 16 rows of a panel to global memory, from `row` and `col` of the tile on: lanes side by side take what lies side by side
// in a row, so that lines leave as wholes. `kWide`: rows are multiples of 16 bytes; `even`: of four.
template <class Config, Dtype kDtype, bool kWide>
MK_DEVICE void store_panel_rows(u32 panel, const Lines& to, i32 row, i32 col, i32 valid_rows, i32 valid_cols, bool even) {
  constexpr u32 kBytes = kWide ? 16 : 4, kLanes = Config::kPanelRowBytes / kBytes, kRows = 32 / kLanes;
  const u32 at = lane_index() % kLanes * kBytes;
  const i32 left = valid_cols - col - static_cast<i32>(at / element_bytes(kDtype));
#pragma unroll(kWide ? 16 / kRows : 1)
  for (u32 i = 0; i < 16 / kRows; ++i) {
    const u32 r = i * kRows + lane_index() / kLanes;
    const u32 source = panel_chunk<Config>(panel, warp_index() % kWarpgroupWarps * 16 + r, at / 16) + at % 16;
    if (row + static_cast<i32>(r) >= valid_rows || left <= 0) continue;
    const u64 target = to.data + static_cast<u64>(row + r) * to.pitch_bytes + static_cast<u64>(col) * element_bytes(kDtype) + at;
    u16* const out = reinterpret_cast<u16*>(target);
    if constexpr (kWide) {
      st_vec16(out, ld_shared_vec16(source));
    } else if (kDtype == Dtype::F32 || even) {
      st_u32(out, ld_shared(source));
    } else {
      const u32 two = ld_shared(source);
      st_u16(out, static_cast<u16>(two));
      if (left >= 2) st_u16(out + 1, static_cast<u16>(two >> 16));
    }
  }
}

// A panel that this warp has filled with its rows, as above; afterwards it may be filled again.
template <class Config, Dtype kDtype, bool kWide>
MK_DEVICE void store_panel(u32 panel, const Lines& to, u32 consumer, u32 m, u32 col, i32 valid_rows, i32 valid_cols, bool even) {
  __syncwarp();
  const i32 row = static_cast<i32>(Config::first_row(consumer) + m * 64 + warp_index() % kWarpgroupWarps * 16);
  store_panel_rows<Config, kDtype, kWide>(panel, to, row, static_cast<i32>(col), valid_rows, valid_cols, even);
  __syncwarp();
}

// Saves what accumulators hold, after what comes before, of all of a tile at once: what is needed for it is in registers for nothing
// else, and those are scarce in what follows. It goes through the panel that the consumer fills next.
template <u32 kSave, class Config, class Edges, class Hooks>
MK_DEVICE void save_matrix(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                           const RingCursor<Config::kPanels>& staging, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  constexpr SavedAs kAs = Hooks::template saved_as<kSave>();
  static_assert(kAs.dtype != Dtype::F32 || Config::kPanelRowBytes == 128, "f32 panels are 32 columns wide");
  static_assert(kAs.dtype != Dtype::F32 || !kAs.aside, "f32 panels are filled from accumulators");
  // Gates, and ups.
  constexpr u32 kFirst = Config::kSavesGates && kSave == 1 ? Config::kAccumulators / 2 : 0;
  constexpr u32 kCols = Config::kPanelRowBytes / element_bytes(kAs.dtype);
  const Lines to = hooks.template saved<kSave>(tile);
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  const u32 panel = smem.panel(consumer, staging.stage);
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
    const u32 row = fragment_row<Config>(consumer, m);
#pragma unroll
    for (u32 n = 0; n < Config::kOutColsPerConsumer / kCols; ++n) {
      const u32 col = Config::first_col(consumer) + n * kCols;
      float* const first = &acc[m][kFirst + n * kCols / 2];
#pragma unroll
      for (u32 j = 0; j < kCols / 16; ++j) {
        u32 packed[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          float* pair = first + j * 8 + 2 * i;
          float copy[2] = {pair[0], pair[1]};
          if constexpr (kAs.aside) pair = copy;
          hooks.template before_save<kSave>(tile, row + i % 2 * 8, col + j * 16 + i / 2 * 8 + lane_index() % 4 * 2, pair[0], pair[1]);
          if constexpr (kAs.dtype != Dtype::F32) packed[i] = pack2<kAs.dtype>(pair[0], pair[1]);
        }
        if constexpr (kAs.dtype != Dtype::F32) stage_16_columns<Config>(panel, j, packed);
      }
      if constexpr (kAs.dtype == Dtype::F32) stage_f32_panel(panel, first);
      store_panel<Config, kAs.dtype, kAs.wide>(panel, to, consumer, m, col, tile.valid_rows, tile.valid_cols, kAs.even);
    }
  }
}

// All that the plan saves of a tile. Leaves accumulators as they are behind the last of it.
template <u32 kSave, class Config, class Edges, class Hooks>
MK_DEVICE void save_tile(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer,
                         const RingCursor<Config::kPanels>& staging, float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  if constexpr (Config::kGated && kSave == (Config::kSavesGates ? 2 : 0)) {
#pragma unroll
    for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
#pragma unroll
      for (u32 i = 0; i < Config::kAccumulators / 2; ++i) apply_gate<Config>(&acc[m][i]);
    }
  }
  if constexpr (kSave < Config::kSaves) {
    save_matrix<kSave, Config, Edges>(smem, hooks, tile, consumer, staging, acc);
    save_tile<kSave + 1, Config, Edges>(smem, hooks, tile, consumer, staging, acc);
  }
}

// Two neighbouring results, or one where `left` is 1. `pairs`: the address is a multiple of both.
template <Dtype kOut>
MK_DEVICE void store_pair(u64 address, float x0, float x1, bool pairs, i32 left) {
  if constexpr (kOut == Dtype::F32) {
    float* out = reinterpret_cast<float*>(address);
    if (pairs && left >= 2) {
      st_u32x2(out, __float_as_uint(x0), __float_as_uint(x1));
    } else {
      st_u32(out, __float_as_uint(x0));
      if (left >= 2) st_u32(out + 1, __float_as_uint(x1));
    }
  } else if constexpr (element_bytes(kOut) == 1) {
    u8* out = reinterpret_cast<u8*>(address);
    const u16 two = pack2_bytes<kOut>(x0, x1);
    if (pairs && left >= 2) {
      st_u16(out, two);
    } else {
      st_u8(out, two);
      if (left >= 2) st_u8(out + 1, static_cast<u16>(two >> 8));
    }
  } else {
    u16* out = reinterpret_cast<u16*>(address);
    if (pairs && left >= 2) {
      st_u32(out, pack2<kOut>(x0, x1));
    } else {
      st_u16(out, narrow<kOut>(x0));
      if (left >= 2) st_u16(out + 1, narrow<kOut>(x1));
    }
  }
}

// The bytes that four lanes have of a row's 128, two of each eight: in `words` those of each 16 in turn. Afterwards each lane has 32 neighbours, the
// first lane the first ones: blocks of two words change places with lanes, first every other one, then pairs.
MK_DEVICE void gather_bytes(u32 (&words)[8]) {
#pragma unroll
  for (u32 apart = 1; apart <= 2; apart *= 2) {
    const bool upper = (lane_index() & apart) != 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      if ((i / 2 & apart) != 0) continue;
      u32 &low = words[i], &high = words[i + 2 * apart];
      const u32 other = __shfl_xor_sync(0xffffffffu, upper ? low : high, apart);
      low = upper ? other : low;
      high = upper ? high : other;
    }
  }
  u32 of[8];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) of[i] = words[i];
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 from = i / 4 + i % 2 * 4;
    words[i] = __byte_perm(of[from], of[from + 2], i / 2 % 2 == 0 ? 0x5410 : 0x7632);
  }
}

// 32 neighbours of a row, of which `left` are there. `wide`: at a multiple of 16, `words_fit`: of 4.
MK_DEVICE void store_32_bytes(u64 at, const u32 (&words)[8], i32 left, bool wide, bool words_fit) {
  if (wide && left >= 32) {
#pragma unroll
    for (u32 i = 0; i < 8; i += 4) st_vec16(reinterpret_cast<void*>(at + i * 4), Vec16{{words[i], words[i + 1], words[i + 2], words[i + 3]}});
    return;
  }
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    if (words_fit && static_cast<i32>(i) * 4 + 4 <= left) {
      st_u32(reinterpret_cast<void*>(at + i * 4), words[i]);
      continue;
    }
#pragma unroll
    for (u32 byte = 0; byte < 4; ++byte) {
      const u32 col = i * 4 + byte;
      if (static_cast<i32>(col) < left) st_u8(reinterpret_cast<void*>(at + col), static_cast<u8>(words[i] >> 8 * byte));
    }
  }
}

// 64 rows of results in eight bits, and the factors of their blocks of 128 columns: each four lanes have two rows. Results stay where sums
// were until the largest of a block is known.
template <class Config, class Hooks>
MK_DEVICE void store_quantized(const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 m, i32 rows, const Lines& to,
                               float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  static_assert(Config::kOutColsPerConsumer % kScaleBlock == 0, "a consumer has whole blocks");
  const Lines factors = hooks.factors(tile);
  const bool wide = (to.data | to.pitch_bytes) % 16 == 0, words_fit = (to.data | to.pitch_bytes) % 4 == 0;
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    const u32 row = fragment_row_anew<Config>(consumer, m) + half * 8;
    const bool there = static_cast<i32>(row) < rows;
#pragma unroll
    for (u32 b = 0; b < Config::kOutColsPerConsumer / kScaleBlock; ++b) {
      u32 first = Config::first_col(consumer) + b * kScaleBlock;
      // Or the compiler keeps addresses of columns from one pass to the next, in registers that there are not.
      asm volatile("" : "+r"(first));
      u32 magnitude = 0;
#pragma unroll
      for (u32 j = 0; j < kScaleBlock / 8; ++j) {
        const u32 col = first + j * 8 + lane_index() % 4 * 2;
        float* const x = &acc[m][(b * (kScaleBlock / 8) + j) * 4 + half * 2];
        if constexpr (Config::kSaves == 0) {
          apply_gate<Config>(x);
          apply_gate<Config>(x + 1);
        }
        hooks.epilogue(tile, row, col, x[0], x[1]);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
          const bool counts = static_cast<i32>(col + i) < tile.valid_cols;
          magnitude = max(magnitude, counts ? __float_as_uint(x[i]) & 0x7fffffffu : 0u);
        }
      }
      magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, 1));
      magnitude = max(magnitude, __shfl_xor_sync(0xffffffffu, magnitude, 2));
      const bool stored = there && static_cast<i32>(first) < tile.valid_cols;
      const float factor = factor_of<Config::kOut>(magnitude);
      const u32 lane = lane_index() % 4;
      if (stored && lane == 0) {
        const u64 at = factors.data + first / kScaleBlock * factors.pitch_bytes + u64{row} * 4;
        st_u32(reinterpret_cast<void*>(at), __float_as_uint(factor));
      }
      asm volatile("" : "+r"(first));
      const Divisor by(factor);
      u32 words[kScaleBlock / 16];
#pragma unroll
      for (u32 j = 0; j < kScaleBlock / 8; j += 2) {
        const float* const x = &acc[m][(b * (kScaleBlock / 8) + j) * 4 + half * 2];
        const u32 low = pack2_bytes<Config::kOut>(by.quotient(x[0]), by.quotient(x[1]));
        words[j / 2] = low | u32{pack2_bytes<Config::kOut>(by.quotient(x[4]), by.quotient(x[5]))} << 16;
      }
      gather_bytes(words);
      const u32 col = first + lane * 32;
      const u64 at = to.data + static_cast<u64>(row) * to.pitch_bytes + col;
      if (stored) store_32_bytes(at, words, tile.valid_cols - static_cast<i32>(col), wide, words_fit);
    }
  }
}

// Results to global memory by ordinary stores, for pitches and columns that TMA cannot address: through a panel, or pair by pair where
// the elementwise chain reads operands, whose addresses leave no registers for that, or results have eight bits. Every store is predicated on the tile's bounds, and
// on the abort flag: the loader set it before the arrival that this warp's last wait observed.
template <class Config, class Edges, class Hooks>
MK_DEVICE void store_tile_direct(const Context& ctx, const GemmSmem<Config>& smem, const Hooks& hooks,
                                 const GemmTile& tile, u32 consumer, RingCursor<Config::kPanels>& staging,
                                 float (&acc)[Config::kMmasPerStep][Config::kAccumulators]) {
  // The storer sends nothing: the edges carry the news to it, and its leave to bring the next.
  mbarrier_wait<Edges::staging_free>(smem.staging_free(consumer, staging.stage), staging.phase ^ 1);
  constexpr u32 kBytes = element_bytes(Config::kOut), kCols = Config::kPanelCols;
  const Lines to{tile.c_data + static_cast<u64>(tile.c_row) * tile.c_pitch_bytes + static_cast<u64>(tile.c_col) * kBytes, tile.c_pitch_bytes};
  const bool even = (to.data | to.pitch_bytes) % (Config::kReads ? 2 * kBytes : 4) == 0;
  const i32 rows = ctx.aborted() ? 0 : tile.valid_rows;
  const u32 panel = smem.panel(consumer, staging.stage);
#pragma unroll
  for (u32 m = 0; m < Config::kMmasPerStep; ++m) {
    const u32 row = fragment_row<Config>(consumer, m);
    if constexpr (Config::kQuantizes) {
      store_quantized<Config>(hooks, tile, consumer, m, rows, to, acc);
    } else if constexpr (Config::kReads) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        if (static_cast<i32>(row + half * 8) >= rows) continue;
        const u64 line = to.data + static_cast<u64>(row + half * 8) * to.pitch_bytes;
#pragma unroll
        for (u32 j = 0; j < Config::kOutColsPerConsumer / 8; ++j) {
          const u32 col = Config::first_col(consumer) + j * 8 + lane_index() % 4 * 2;
          const i32 left = tile.valid_cols - static_cast<i32>(col);
          if (left <= 0) continue;
          float& x0 = acc[m][j * 4 + half * 2];
          float& x1 = acc[m][j * 4 + half * 2 + 1];
          if constexpr (Config::kSaves == 0) {
            apply_gate<Config>(&x0);
            apply_gate<Config>(&x1);
          }
          hooks.epilogue(tile, row + half * 8, col, x0, x1);
          store_pair<Config::kOut>(line + col * kBytes, x0, x1, even, left);
        }
      }
    } else {
#pragma unroll
      for (u32 n = 0; n < Config::kOutColsPerConsumer / kCols; ++n) {
        const u32 col = Config::first_col(consumer) + n * kCols;
        float* const first = &acc[m][n * kCols / 2];
#pragma unroll
        for (u32 j = 0; j < kCols / 16; ++j) {
          u32 packed[4];
          finish_16_columns<Config>(hooks, tile, row, col + j * 16, first + j * 8, packed);
          if constexpr (Config::kOut != Dtype::F32) stage_16_columns<Config>(panel, j, packed);
        }
        if constexpr (Config::kOut == Dtype::F32) stage_f32_panel(panel, first);
        store_panel<Config, Config::kOut, false>(panel, to, consumer, m, col, rows, tile.valid_cols, even);
      }
    }
  }
  __syncwarp();
  if (lane_index() == 0) mbarrier_arrive<Edges::staging_full>(smem.staging_full(consumer, staging.stage));
  staging.advance();
}
