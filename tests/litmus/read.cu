// The reading CTA. Every word of every turn is compared with what the turn must contain.

// As copy_rows reads: thread 0 waits and posts for all, over a named barrier.
template <Case kCase>
MK_DEVICE void read_rows(const Context& ctx, const Params& p, const Pair& pair) {
  Rng rng = Rng::seeded(ctx);
  Count count(p);
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i;
    if (threadIdx.x == 0) {
      wait_message<kCase>(ctx, pair, turn);
      if constexpr (kCase.early_hand_back) post_hand_back<kCase>(ctx, pair);
    }
    named_barrier_sync<kInside, 1, kWorkers>();
    if (!ctx.aborted()) {
      count.turns += threadIdx.x == 0;
#pragma unroll 1
      for (u32 at = threadIdx.x * 16; at < pair.bytes; at += kWorkers * 16) {
        const Vec16 v = ld_vec16(reinterpret_cast<const void*>(pair.slot(turn) + at));
#pragma unroll
        for (u32 k = 0; k < 4; ++k) count.check(pair.who, turn, at / 4 + k, v.x[k]);
      }
      delay(rng);
    }
    named_barrier_sync<kInside, 1, kWorkers>();
    if (threadIdx.x == 0 && !kCase.early_hand_back) post_hand_back<kCase>(ctx, pair);
  }
  count.add();
}

// One lane: waits for the signal and issues the load.
template <Case kCase>
MK_DEVICE void load_messages(const Context& ctx, const Params& p, const Smem& smem, const Pair& pair) {
  RingCursor<kStages> ring;
  Rng rng = Rng::seeded(ctx);
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i, piece = smem.piece(ring.stage), full = smem.full(ring.stage);
    mbarrier_wait<kInside>(smem.free(ring.stage), ring.phase ^ 1);
    wait_message<kCase>(ctx, pair, turn);
    if (ctx.aborted()) {
      mbarrier_arrive<kInside>(full);
    } else {
      mbarrier_arrive_expect_tx<kInside>(full, pair.bytes);
      if constexpr (kCase.early_hand_back) {
        // The loader knows no more than that it is about to read.
        post_hand_back<kCase>(ctx, pair);
        delay(rng);
      }
      if constexpr (kCase.reading == Reading::Tensor) {
        tma_load_2d(piece, &p.maps[kLoadMap + pair.size_class], full, 0, pair.row(turn));
      } else {
        bulk_load(piece, reinterpret_cast<const void*>(pair.slot(turn)), pair.bytes, full);
      }
      delay(rng);
    }
    ring.advance();
  }
}

// Workers: learn from the mbarrier that the load is complete (PTX ISA, "mbarrier": complete-tx operation); the first of
// them hands the slot back at once.
template <Case kCase>
MK_DEVICE void check_messages(const Context& ctx, const Params& p, const Smem& smem, const Pair& pair) {
  RingCursor<kStages> ring;
  Rng rng = Rng::seeded(ctx);
  Count count(p);
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i, piece = smem.piece(ring.stage);
    mbarrier_wait<kInside>(smem.full(ring.stage), ring.phase);
    if (threadIdx.x == 0 && !kCase.early_hand_back) post_hand_back<kCase>(ctx, pair);
    if (!ctx.aborted()) {
      count.turns += threadIdx.x == 0;
#pragma unroll 1
      for (u32 j = threadIdx.x; j < pair.bytes / 4; j += kWorkers) {
        count.check(pair.who, turn, j, ld_shared(piece + j * 4));
      }
      delay(rng);
    }
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive<kInside>(smem.free(ring.stage));
    ring.advance();
  }
  count.add();
}

template <Case kCase>
MK_DEVICE void read_messages(const Context& ctx, const Params& p, const Smem& smem, const Pair& pair) {
  if constexpr (kCase.reading == Reading::Generic) {
    if (threadIdx.x < kWorkers) read_rows<kCase>(ctx, p, pair);
  } else if (threadIdx.x < kWorkers) {
    check_messages<kCase>(ctx, p, smem, pair);
  } else if (threadIdx.x == kWorkers) {
    load_messages<kCase>(ctx, p, smem, pair);
  }
}
