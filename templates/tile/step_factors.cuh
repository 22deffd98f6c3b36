// Factors of blocks of 128 along K, as the steps of a tile take them. Those of rows come to shared memory a step ahead (PTX ISA, "cp.async"),
// the 16 of each warp by themselves; those of columns, which all rows share, wait in a warp's lanes, of some steps at once.

// The first of all steps of the operands that is this CTA's.
template <class Config>
MK_DEVICE u32 first_step(const GemmTile& tile) {
  return Config::kCluster > 1 ? static_cast<u32>(tile.a_k) / Config::kBlockK : 0;
}

template <class Config>
struct StepFactors {
  static constexpr u32 kAcross = Config::kMmaN / Config::kPartCols;
  static constexpr u32 kSteps = 32 / kAcross;
  static_assert(!Config::kStepScaled || Config::kMmasPerStep == 1, "a warp has 16 rows");

  // Of one of the parts' columns, and one of the next `kSteps` steps.
  float lane;
  // How far behind the first one of all rows this lane's row has the factor of the step that is sent for next: what 4 GiB of factors belong to
  // is more than a GPU has. And where those of even steps come to.
  u32 at, room;

  template <class Hooks>
  MK_DEVICE void begin(const GemmSmem<Config>& smem, const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 from) {
    if constexpr (Hooks::kStepsRows) {
      const u32 thread = thread_anew();
      room = smem.row_factors(thread);
      // Of a row that is not there, whose results nobody stores, the last one's.
      const i32 row = static_cast<i32>(Config::first_row(consumer) + thread / 32 % kWarpgroupWarps * 16 + thread % 16);
      at = static_cast<u32>(tile.s_row + max(min(row, tile.valid_rows - 1), 0)) * 4 + (first_step<Config>(tile) + from) * pitch_bytes(hooks, tile);
      send(hooks, tile, 0);
    }
  }

  // What lanes of this warp have read of the slot, they have used.
  template <class Hooks>
  MK_DEVICE void send(const Hooks& hooks, const GemmTile& tile, u32 slot) {
    if constexpr (Hooks::kStepsRows) {
      __syncwarp();
      if (lane_index() < 16) cp_async_word(room + slot * kWarpFactorBytes + lane_index() * 4, of_all_rows(hooks, tile).data + at);
      at += pitch_bytes(hooks, tile);
    }
  }
  template <class Hooks>
  MK_DEVICE static Lines of_all_rows(const Hooks& hooks, const GemmTile& tile) {
    GemmTile all;
    all.family = tile.family;
    all.s_row = 0;
    return hooks.step_rows(all);
  }
  template <class Hooks>
  MK_DEVICE static u32 pitch_bytes(const Hooks& hooks, const GemmTile& tile) {
    return static_cast<u32>(of_all_rows(hooks, tile).pitch_bytes);
  }

  // Brings those of step `k`, the `done`th of a loop, and sends for those of the next one, if there are `more`.
  template <class Hooks>
  MK_DEVICE void step(const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 k, u32 done, bool more) {
    if constexpr (Hooks::kStepsRows) {
      cp_async_commit();
      if (more) send(hooks, tile, (done + 1) % 2);
    }
    if constexpr (Hooks::kStepsColumns) {
      if (done % kSteps == 0) {
        const u32 of = thread_anew() % 32;
        lane = of_columns(hooks, tile, consumer, of / kSteps, first_step<Config>(tile) + k + of % kSteps);
      }
    }
    if constexpr (Hooks::kStepsRows) {
      cp_async_wait();
      __syncwarp();
    }
  }

  // Of this thread's rows and the columns of part `n`.
  template <class Hooks>
  MK_DEVICE Pair of_part(u32 n, u32 done) const {
    const float column = Hooks::kStepsColumns ? __shfl_sync(~0u, lane, n * kSteps + done % kSteps) : 1.0f;
    if constexpr (!Hooks::kStepsRows) return Pair{column, column};
    const u32 rows = room + done % 2 * kWarpFactorBytes + lane_index() / 4 * 4;
    return Pair{column * __uint_as_float(ld_shared(rows)), column * __uint_as_float(ld_shared(rows + 32))};
  }

  // Of part `n` and a step of all.
  template <class Hooks>
  MK_DEVICE static float of_columns(const Hooks& hooks, const GemmTile& tile, u32 consumer, u32 n, u32 k) {
    const Lines lines = hooks.step_columns(tile);
    // Gated, one part of gates, and one of ups, of which there are some. Blocks without columns have no factors.
    const u32 col = Config::first_col(consumer) + n * Config::kPartCols;
    u32 block = col / kScaleBlock;
    if constexpr (Config::kGated) block = n * Hooks::kStepUps;
    const bool there = Config::kGated || static_cast<i32>(col) < tile.valid_cols;
    const u32 steps = there ? first_step<Config>(tile) + tile.k_blocks : 0;
    return load_factor(lines.data + block * lines.pitch_bytes, k, static_cast<i32>(steps));
  }
};

