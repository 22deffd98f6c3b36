// Gradients of queries: each consumer holds 64 of them. Of a block of keys, scores and the weights' gradients are computed
// sequentially, weights are made beside the second product, and their gradients times keys are added beside the next block's scores.
// Run by all threads of consumer warpgroup `consumer`. `Edges`: as of the loader, and `staged`, `drained` and `within`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_dq_consumer(const Context& ctx, const AttendGradSmem<Config>& smem, const Hooks& hooks, u32 consumer,
                                       AttendGradCursor<Config::kStages>& at) {
  using Named = AttendGradEdges<Config, Edges>;
  const float scale = __uint_as_float(Config::kScaleBits), exponent = __uint_as_float(Config::kExponentBits);
  float s[Config::kScores], dp[Config::kScores], dq[Config::kResults];
  u32 ds[Config::kWeights];
#pragma unroll 1
  for (ReaderTiles<AttendGradSmem<Config>, Edges, Hooks, true> tiles(smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const AttendDqTile tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Consumer, tiles.t);
    AttendGradWalk<Config, Hooks, AttendDqTile> walk{hooks, tile};
#pragma unroll
    for (u32 i = 0; i < Config::kResults; ++i) dq[i] = 0.0f;
    mbarrier_wait<Named::held_full>(smem.held_full(), at.held);
    if constexpr (Config::kBounded) walk.begin(smem.span(), consumer);
    float lse[2], delta[2];
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      const u32 row = consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4 + r * 8;
      ld_shared_f32x2(smem.held_stats() + row * kStatsBytes, lse[r], delta[r]);
      lse[r] *= kLog2E;
    }
    bool first = true;
#pragma unroll 1
    while (walk.next()) {
      mbarrier_wait<Named::moved_full>(smem.moved_full(at.moved.stage), at.moved.phase);
      attend_grad_scores<Config, Config::kDim>(smem.template held<0>(), smem.template moved<0>(at.moved.stage), consumer, s);
      attend_grad_scores<Config, Config::kValueDim>(smem.template held<1>(), smem.template moved<1>(at.moved.stage), consumer, dp);
      sm90_wgmma_wait<1>();
      sm90_pin_registers(s);
      if (!first) attend_arrive<Named::moved_empty>(smem.moved_empty(at.moved.previous_stage()));
      first = false;
      attend_cap<Config>(s);
#pragma unroll
      for (u32 i = 0; i < Config::kScores; ++i) s[i] = exp2_approx(s[i] * (exponent * kLog2E) - lse[i % 4 / 2]);
      // Twice: the gradients may be NaN where weights are zero. The branch also keeps ptxas from waiting before all of this.
      const bool masked = walk.masked(consumer);
      if (masked) walk.mask(consumer, s);
      sm90_wgmma_wait<0>();
      sm90_pin_registers(dp);
      sm90_pin_registers(dq);
#pragma unroll
      for (u32 i = 0; i < Config::kScores; ++i) {
        const float above = dp[i] - delta[i % 4 / 2];
        s[i] *= Config::kCapBits != 0 ? above * attend_cap_slope<Config>(s[i], lse[i % 4 / 2]) : above;
      }
      if (masked) walk.mask(consumer, s);
      attend_pack<Config>(s, ds);
      if (walk.ragged()) attend_clear_rest<Config, Edges, Config::kPanels>(smem.template moved<0>(at.moved.stage), consumer, walk.rows);
      attend_grad_add<Config>(smem.template moved<0>(at.moved.stage), ds, dq);
      at.moved.advance();
    }
    attend_arrive<Named::held_empty>(smem.held_empty());
    sm90_wgmma_wait<0>();
    sm90_pin_registers(dq);
    if (!first) attend_arrive<Named::moved_empty>(smem.moved_empty(at.moved.previous_stage()));
    mbarrier_wait<Edges::drained>(smem.drained(), at.held ^ 1);
    attend_grad_store<Config>(ctx, tile.dq, tile.dq_pitch_bytes, tile.rows, consumer, scale, dq);
    __syncwarp();
    attend_arrive<Edges::staged>(smem.staged());
    at.held ^= 1;
  }
}
