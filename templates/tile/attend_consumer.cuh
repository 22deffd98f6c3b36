// The agents that attend: warpgroups, each with 64 queries of every tile. Scores, weights and results are in registers; the scores of
// a block are computed beside the results of the block before it, and one consumer makes weights of scores while another multiplies; nobody
// tells them whose turn it is.
// Named barriers of each consumer by itself.
constexpr u32 kAttendConsumer = 5;

template <class Config, class Edges, u32 kConsumer = 0>
MK_DEVICE void attend_sync_consumer(u32 consumer) {
  if constexpr (kConsumer + 1 < Config::kConsumers) {
    if (consumer != kConsumer) return attend_sync_consumer<Config, Edges, kConsumer + 1>(consumer);
  }
  named_barrier_sync<Edges::within, kAttendConsumer + kConsumer, kWarpgroupThreads>();
}

// Arrives: one lane of each warp.
template <u32 kEdge>
MK_DEVICE void attend_arrive(u32 bar) {
  if (lane_index() == 0) mbarrier_arrive<kEdge>(bar);
}

// S = Q K^T of one block, left in flight.
template <class Config>
MK_DEVICE void attend_scores(const AttendSmem<Config>& smem, u32 consumer, u32 stage, float (&s)[Config::kScores]) {
  const u64 q = sm90_descriptor_k_major(smem.q() + consumer * Config::kConsumerRows * Config::kPanelRowBytes);
  const u64 k = sm90_descriptor_k_major(smem.k(stage));
  sm90_wgmma_fence();
#pragma unroll
  for (u32 kk = 0; kk < Config::kDim / kWgmmaK; ++kk) {
    const u32 step = kk % 4 * kKMajorStepBytes;
    sm90_wgmma<Config::kDtype, ALayout::KMajor, BLayout::KMajor>(s, q + ((kk / 4 * Config::kQPanelBytes + step) >> 4),
                                                                 k + ((kk / 4 * Config::kKvPanelBytes + step) >> 4), kk != 0);
  }
  sm90_wgmma_commit();
}

// Behind a chunk's last row is whatever memory holds, and a weight of zero makes NaN of a NaN. Each consumer clears it for itself.
template <class Config, class Edges, u32 kPanels>
MK_DEVICE void attend_clear_rest(u32 block, u32 consumer, i32 rows) {
  const u32 words = (Config::kBlockN - static_cast<u32>(rows)) * (Config::kPanelRowBytes / 8);
#pragma unroll 1
  for (u32 p = 0; p < kPanels; ++p) {
    const u32 rest = block + p * Config::kKvPanelBytes + static_cast<u32>(rows) * Config::kPanelRowBytes;
#pragma unroll 1
    for (u32 i = threadIdx.x % kWarpgroupThreads; i < words; i += kWarpgroupThreads) st_shared_f32x2(rest + i * 8, 0.0f, 0.0f);
  }
  fence_proxy_async_shared();
  attend_sync_consumer<Config, Edges>(consumer);
}

// O += P V of one block, left in flight.
template <class Config>
MK_DEVICE void attend_results(const AttendSmem<Config>& smem, u32 stage, const u32 (&p)[Config::kWeights],
                              float (&o)[Config::kResults]) {
  const u64 v = sm90_descriptor_mn_major<Config::kPanelRowBytes>(smem.v(stage), Config::kBlockN);
  sm90_wgmma_fence();
#pragma unroll
  for (u32 kk = 0; kk < Config::kBlockN / kWgmmaK; ++kk) {
    sm90_wgmma_from_registers<Config::kDtype, BLayout::NMajor>(
        o, p + 4 * kk, v + ((kk * sm90_mn_major_step_bytes(Config::kPanelRowBytes)) >> 4), 1);
  }
  sm90_wgmma_commit();
}

// The blocks of a tile's keys, chunk by chunk.
template <class Config, class Hooks>
struct AttendWalk {
  const Hooks& hooks;
  const AttendTile& tile;
  i32 chunk = -1;
  i32 left = 0;      // blocks of the chunk
  i32 rows = 0;      // keys of the chunk from the block's first on
  i32 diagonal = 0;  // column of the block that is at the position of the tile's first query; of bounds, less the block's position
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
      AttendChunk c = hooks.chunk(tile, chunk);
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

  // Of a consumer's scores of the block.
  MK_DEVICE void mask(u32 consumer, float (&s)[Config::kScores]) const {
    constexpr i32 kN = static_cast<i32>(Config::kBlockN);
    if constexpr (Config::kBounded) {
      const AttendBounds b = bounds(consumer);
      if (rows >= kN && b.all(-diagonal, kN)) return;
      attend_mask_below<Config>(s, b.from[0] + diagonal, b.from[1] + diagonal);
      attend_mask<Config>(s, min(rows, b.end[0] + diagonal), min(rows, b.end[1] + diagonal));
      return;
    }
    constexpr i32 kHeads = Config::kHeads;
    const i32 first = static_cast<i32>(consumer * Config::kConsumerRows), last = first + static_cast<i32>(Config::kConsumerRows) - 1;
    const i32 row = first + static_cast<i32>(warp_index() % kWarpgroupWarps * 16 + lane_index() / 4);
    // Columns behind the own positions of the thread's two queries.
    const i32 own0 = diagonal + row / kHeads + 1, own1 = diagonal + (row + 8) / kHeads + 1;
    if constexpr (Config::kWindow > 0) {
      // Queries of the consumer see fewer keys before their own than there are here.
      if (diagonal + last / kHeads + 1 > Config::kWindow) attend_mask_below<Config>(s, own0 - Config::kWindow, own1 - Config::kWindow);
    }
    if (rows >= kN && (!Config::kCausal || diagonal + first / kHeads >= kN - 1)) return;
    i32 bound0 = rows, bound1 = rows;
    if constexpr (Config::kCausal) {
      bound0 = min(rows, own0);
      bound1 = min(rows, own1);
    }
    attend_mask<Config>(s, bound0, bound1);
  }
};

// Four words of each of four neighbouring lanes: lane i gets the ith word of each.
MK_DEVICE Vec16 quad_transpose(u32 w0, u32 w1, u32 w2, u32 w3) {
  const bool odd = lane_index() % 2 != 0, high = lane_index() % 4 >= 2;
  const u32 a = __shfl_xor_sync(0xffffffffu, odd ? w0 : w1, 1), b = __shfl_xor_sync(0xffffffffu, odd ? w2 : w3, 1);
  (odd ? w0 : w1) = a;
  (odd ? w2 : w3) = b;
  const u32 c = __shfl_xor_sync(0xffffffffu, high ? w0 : w2, 2), d = __shfl_xor_sync(0xffffffffu, high ? w1 : w3, 2);
  (high ? w0 : w2) = c;
  (high ? w1 : w3) = d;
  return Vec16{w0, w1, w2, w3};
}

// The `r`th of a thread's two rows, times `factor`: of four lanes, 64 bytes of it each time.
template <class Config, u32 kResults>
MK_DEVICE void attend_store_row(u64 line, u32 r, float factor, bool stores, const float (&o)[kResults]) {
  line += lane_index() % 4 * 16;
#pragma unroll
  for (u32 g = 0; g < kResults / 16; ++g) {
    u32 w[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 at = (g * 4 + i) * 4 + r * 2;
      w[i] = pack2<Config::kDtype>(o[at] * factor, o[at + 1] * factor);
    }
    const Vec16 part = quad_transpose(w[0], w[1], w[2], w[3]);
    if (stores) st_vec16(reinterpret_cast<void*>(line + g * 64), part);
  }
}

// What a part of the keys gave, in f32: unnormalised results, and a maximum and a sum of each query.
template <class Config>
MK_DEVICE void attend_store_part(const Context& ctx, const AttendTile& tile, u32 consumer, const SoftmaxState& state,
                                 const float (&o)[Config::kResults]) {
  const bool aborted = ctx.aborted();
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const u32 row = consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4 + r * 8;
    const float sum = row_sum(state.sum[r]), most = state.most[r] * __uint_as_float(Config::kExponentBits);
    if (aborted || static_cast<i32>(row) >= tile.rows) continue;
    if (lane_index() % 4 == 0) {
      st_u32x2(reinterpret_cast<void*>(tile.lse + row * tile.stat_pitch_bytes), __float_as_uint(most), __float_as_uint(sum));
    }
    const u64 line = tile.o + row * tile.o_pitch_bytes + lane_index() % 4 * 8;
#pragma unroll
    for (u32 g = 0; g < Config::kResults / 4; ++g) {
      const u32 at = g * 4 + r * 2;
      st_u32x2(reinterpret_cast<void*>(line + g * 32), __float_as_uint(o[at]), __float_as_uint(o[at + 1]));
    }
  }
}

// Results and the logarithms of sums of this consumer's queries, by ordinary stores.
template <class Config>
MK_DEVICE void attend_store(const Context& ctx, const AttendTile& tile, u32 consumer, const SoftmaxState& state,
                            const float (&o)[Config::kResults]) {
  const float scale = __uint_as_float(Config::kExponentBits) * kLog2E;
  const bool aborted = ctx.aborted();
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    const u32 row = consumer * Config::kConsumerRows + warp_index() % kWarpgroupWarps * 16 + lane_index() / 4 + r * 8;
    const float sum = row_sum(state.sum[r]);
    const bool stores = !aborted && static_cast<i32>(row) < tile.rows;
    float share = sum == 0.0f ? 0.0f : 1.0f / sum, most = state.most[r] * scale, total = sum;
    if constexpr (Config::kSinks) {
      // Both by the greater of them: a sink may be far from all scores.
      const float sink = __uint_as_float(ld_u32(reinterpret_cast<const void*>(tile.sink))) * kLog2E, top = fmaxf(most, sink);
      const float own = most == top ? 1.0f : exp2_approx(most - top);
      total = sum * own + (sink == top ? 1.0f : exp2_approx(sink - top));
      share = own / total;
      most = top;
    }
    if (stores && lane_index() % 4 == 0 && tile.lse != 0) {
      const float lse = total == 0.0f ? minus_infinity() : (most + log2_approx(total)) * kLn2;
      st_u32(reinterpret_cast<void*>(tile.lse + row * 4ull), __float_as_uint(lse));
    }
    attend_store_row<Config>(tile.o + row * tile.o_pitch_bytes, r, share, stores, o);
  }
}

// Blocks of a tile none of whose rows are this consumer's: others compute, and have the tensor cores for themselves.
template <class Config, class Edges, class Hooks>
MK_DEVICE void attend_pass(const AttendSmem<Config>& smem, AttendWalk<Config, Hooks>& walk, AttendCursor<Config::kStages>& at) {
#pragma unroll 1
  while (walk.next()) {
    mbarrier_wait<Edges::kv_full>(smem.k_full(at.k.stage), at.k.phase);
    attend_arrive<Edges::kv_empty>(smem.k_empty(at.k.stage));
    at.k.advance();
    mbarrier_wait<Edges::kv_full>(smem.v_full(at.v.stage), at.v.phase);
    attend_arrive<Edges::kv_empty>(smem.v_empty(at.v.stage));
    at.v.advance();
  }
}

// Run by all threads of consumer warpgroup `consumer`. `Edges` names `q_full`, `q_empty`, `kv_full`, `kv_empty`, `staged`, `drained` and `within`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_consumer(const Context& ctx, const AttendSmem<Config>& smem, const Hooks& hooks, u32 consumer,
                                    AttendCursor<Config::kStages>& at) {
  float s[Config::kScores], o[Config::kResults];
  u32 p[Config::kWeights];
#pragma unroll 1
  for (ReaderTiles<AttendSmem<Config>, Edges, Hooks, true> tiles(smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const AttendTile tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Consumer, tiles.t);
    AttendWalk<Config, Hooks> walk{hooks, tile};
    SoftmaxState state{{minus_infinity(), minus_infinity()}, {0.0f, 0.0f}};
    float shrink[2] = {1.0f, 1.0f};
#pragma unroll
    for (u32 i = 0; i < Config::kResults; ++i) o[i] = 0.0f;
    mbarrier_wait<Edges::q_full>(smem.q_full(), at.q);
    if constexpr (Config::kBounded) walk.begin(smem.span(), consumer);
    // Few rows are one consumer's.
    const bool none = Config::kParts && static_cast<i32>(consumer * Config::kConsumerRows) >= tile.rows;
    if (none) attend_pass<Config, Edges>(smem, walk, at);
    if (!none && walk.next()) {
      mbarrier_wait<Edges::kv_full>(smem.k_full(at.k.stage), at.k.phase);
      attend_scores<Config>(smem, consumer, at.k.stage, s);
      sm90_wgmma_wait<0>();
      sm90_pin_registers(s);
      attend_arrive<Edges::kv_empty>(smem.k_empty(at.k.stage));
      at.k.advance();
      attend_cap<Config>(s);
      walk.mask(consumer, s);
      attend_softmax<Config, true>(s, state, shrink);
      bool first = true;
#pragma unroll 1
      while (true) {
        // At the top of the loop: elsewhere ptxas waits first, and makes weights of scores behind that.
        sm90_wgmma_wait<0>();
        sm90_pin_registers(o);
        if (!first) {
          attend_arrive<Edges::kv_empty>(smem.v_empty(at.v.stage));
          at.v.advance();
        }
        first = false;
        attend_pack<Config>(s, p);
        const i32 values = walk.rows;
        if (!walk.next()) break;
        mbarrier_wait<Edges::kv_full>(smem.k_full(at.k.stage), at.k.phase);
        attend_scores<Config>(smem, consumer, at.k.stage, s);
        // Beside the scores.
        attend_shrink<Config>(o, shrink);
        mbarrier_wait<Edges::kv_full>(smem.v_full(at.v.stage), at.v.phase);
        if (values < static_cast<i32>(Config::kBlockN)) attend_clear_rest<Config, Edges, Config::kValuePanels>(smem.v(at.v.stage), consumer, values);
        attend_results<Config>(smem, at.v.stage, p, o);
        sm90_wgmma_wait<1>();
        sm90_pin_registers(s);
        attend_arrive<Edges::kv_empty>(smem.k_empty(at.k.stage));
        at.k.advance();
        attend_cap<Config>(s);
        walk.mask(consumer, s);
        attend_softmax<Config, false>(s, state, shrink);
      }
      attend_arrive<Edges::q_empty>(smem.q_empty());
      attend_shrink<Config>(o, shrink);
      mbarrier_wait<Edges::kv_full>(smem.v_full(at.v.stage), at.v.phase);
      if (walk.rows < static_cast<i32>(Config::kBlockN)) attend_clear_rest<Config, Edges, Config::kValuePanels>(smem.v(at.v.stage), consumer, walk.rows);
      attend_results<Config>(smem, at.v.stage, p, o);
      sm90_wgmma_wait<0>();
      sm90_pin_registers(o);
      attend_arrive<Edges::kv_empty>(smem.v_empty(at.v.stage));
      at.v.advance();
    } else {
      attend_arrive<Edges::q_empty>(smem.q_empty());
    }
    mbarrier_wait<Edges::drained>(smem.drained(), at.q ^ 1);
    if constexpr (Config::kParts) {
      attend_store_part<Config>(ctx, tile, consumer, state, o);
    } else {
      attend_store<Config>(ctx, tile, consumer, state, o);
    }
    __syncwarp();
    attend_arrive<Edges::staged>(smem.staged());
    at.q ^= 1;
  }
}
