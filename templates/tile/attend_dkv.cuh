// Gradients of keys and values: each consumer holds 64 of both. Scores are computed transposed, keys by queries, so that weights and
// their gradients are left operands in registers of the sums over queries. Of wide heads registers have room for one of both sums: tiles
// make either, and compute the scores again.
// Statistics of the queries of a column and of the next.
struct AttendColumns {
  float lse[2], delta[2];
};
MK_DEVICE AttendColumns attend_columns(u32 stats, u32 column) {
  AttendColumns c;
  ld_shared_f32x2(stats + column * kStatsBytes, c.lse[0], c.delta[0]);
  ld_shared_f32x2(stats + (column + 1) * kStatsBytes, c.lse[1], c.delta[1]);
  return c;
}

// Two consumers issue their products in turns: one makes weights while the other multiplies. With heads of 64 their products are too short
// for that. Barriers 8 and 9.
template <class Config, class Edges>
struct AttendTurns {
  static constexpr bool kUsed = Config::kDim >= 128 && Config::kConsumers == 2;
  static constexpr u32 kBarrier = 8, kThreads = 2 * kWarpgroupThreads;
  u32 consumer;

  // The first turn is consumer 0's.
  MK_DEVICE explicit AttendTurns(u32 consumer) : consumer(consumer) {
    if (consumer == 1) pass();
  }
  // Takes the turn that is left over, for who comes after.
  MK_DEVICE void finish() const {
    if (consumer == 0) wait();
  }
  MK_DEVICE void wait() const {
    if constexpr (kUsed) {
      if (consumer == 0) {
        named_barrier_sync<Edges::within, kBarrier, kThreads>();
      } else {
        named_barrier_sync<Edges::within, kBarrier + 1, kThreads>();
      }
    }
  }
  MK_DEVICE void pass() const {
    if constexpr (kUsed) {
      if (consumer == 0) {
        named_barrier_arrive<Edges::within, kBarrier + 1, kThreads>();
      } else {
        named_barrier_arrive<Edges::within, kBarrier, kThreads>();
      }
    }
  }
};

// Run by all threads of consumer warpgroup `consumer`. `Edges`: as of the loader, and `staged`, `drained` and `within`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dkv_consumer(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, u32 consumer,
                                        AttendGradCursor<Config::kStages>& at) {
  using Named = AttendGradEdges<Config, Edges>;
  const float scale = __uint_as_float(Config::kScaleBits), exponent = __uint_as_float(Config::kExponentBits);
  constexpr bool kKeys = Config::kMakesKeys, kValues = Config::kMakesValues;
  float s[Config::kScores], dp[kKeys ? Config::kScores : 1], dk[kKeys ? Config::kResults : 1], dv[kValues ? Config::kValueResults : 1];
  u32 p[kValues ? Config::kWeights : 1], ds[kKeys ? Config::kWeights : 1];
  const AttendTurns<Config, Edges> turns(consumer);
#pragma unroll 1
  for (ReaderTiles<AttendGradSmem<Config>, Edges, Hooks, true> tiles(smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const AttendDkvTile tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Consumer, tiles.t);
    AttendGradWalk<Config, Hooks, AttendDkvTile> walk{hooks, tile};
#pragma unroll
    for (u32 i = 0; i < (kKeys ? Config::kResults : 1); ++i) dk[i] = 0.0f;
#pragma unroll
    for (u32 i = 0; i < (kValues ? Config::kValueResults : 1); ++i) dv[i] = 0.0f;
    mbarrier_wait<Named::held_full>(smem.held_full(), at.held);
    if constexpr (Config::kBounded) walk.begin(smem.span(), consumer);
    bool first = true;
#pragma unroll 1
    while (walk.next()) {
      mbarrier_wait<Named::moved_full>(smem.moved_full(at.moved.stage), at.moved.phase);
      if (first) turns.wait();
      attend_grad_scores<Config, Config::kDim>(smem.template held<0>(), smem.template moved<0>(at.moved.stage), consumer, s);
      // Sums of the block before.
      sm90_wgmma_wait<1>();
      sm90_pin_registers(dk);
      sm90_pin_registers(dv);
      if (!first) attend_arrive<Named::moved_empty>(smem.moved_empty(at.moved.previous_stage()));
      first = false;
      if constexpr (kKeys) {
        attend_grad_scores<Config, Config::kValueDim>(smem.template held<1>(), smem.template moved<1>(at.moved.stage), consumer, dp);
      }
      turns.pass();
      const u32 stats = smem.moved_stats(at.moved.stage) + lane_index() % 4 * 2 * kStatsBytes;
      sm90_wgmma_wait<kKeys ? 1 : 0>();
      sm90_pin_registers(s);
      attend_cap<Config>(s);
#pragma unroll
      for (u32 i = 0; i < Config::kScores; i += 4) {
        const AttendColumns c = attend_columns(stats, i / 4 * 8);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) s[i + j] = exp2_approx(s[i + j] * (exponent * kLog2E) - c.lse[j % 2] * kLog2E);
      }
      // Twice: the gradients may be NaN where weights are zero. The branch also keeps ptxas from waiting before all of this.
      const bool masked = walk.masked(consumer);
      if (masked) walk.mask(consumer, s);
      if constexpr (kValues) attend_pack<Config>(s, p);
      if constexpr (kKeys) {
        sm90_wgmma_wait<0>();
        sm90_pin_registers(dp);
#pragma unroll
        for (u32 i = 0; i < Config::kScores; i += 4) {
          const AttendColumns c = attend_columns(stats, i / 4 * 8);
#pragma unroll
          for (u32 j = 0; j < 4; ++j) {
            const float above = dp[i + j] - c.delta[j % 2];
            s[i + j] *= Config::kCapBits != 0 ? above * attend_cap_slope<Config>(s[i + j], c.lse[j % 2] * kLog2E) : above;
          }
        }
        if (masked) walk.mask(consumer, s);
        attend_pack<Config>(s, ds);
      }
      if (walk.ragged()) {
        if constexpr (kKeys) attend_clear_rest<Config, Edges, Config::kPanels>(smem.template moved<0>(at.moved.stage), consumer, walk.rows);
        if constexpr (kValues) attend_clear_rest<Config, Edges, Config::kValuePanels>(smem.template moved<1>(at.moved.stage), consumer, walk.rows);
      }
      turns.wait();
      if constexpr (kValues) attend_grad_add<Config>(smem.template moved<1>(at.moved.stage), p, dv);
      if constexpr (kKeys) attend_grad_add<Config>(smem.template moved<0>(at.moved.stage), ds, dk);
      at.moved.advance();
    }
    if (!first) turns.pass();
    attend_arrive<Named::held_empty>(smem.held_empty());
    sm90_wgmma_wait<0>();
    sm90_pin_registers(dk);
    sm90_pin_registers(dv);
    if (!first) attend_arrive<Named::moved_empty>(smem.moved_empty(at.moved.previous_stage()));
    mbarrier_wait<Edges::drained>(smem.drained(), at.held ^ 1);
    if constexpr (kKeys) attend_grad_store<Config>(ctx, tile.dk, tile.dk_pitch_bytes, tile.rows, consumer, scale, dk);
    if constexpr (kValues) attend_grad_store<Config>(ctx, tile.dv, tile.dv_pitch_bytes, tile.rows, consumer, 1.0f, dv);
    __syncwarp();
    attend_arrive<Edges::staged>(smem.staged());
    at.held ^= 1;
  }
  turns.finish();
}
