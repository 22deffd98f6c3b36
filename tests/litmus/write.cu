// The writing CTA. Agents as the emitter has them: workers that fill staging, a lane that stores and posts, and, when
// it forwards, a lane that loads.

// As copy_rows: thread 0 waits and posts for all, over a named barrier.
template <Case kCase>
MK_DEVICE void write_rows(const Context& ctx, const Pair& pair) {
  Rng rng = Rng::seeded(ctx);
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i;
    if (threadIdx.x == 0) {
      wait_slot<kCase>(ctx, pair, turn);
      if constexpr (kCase.post_first) post_message<kCase>(ctx, pair);
    }
    named_barrier_sync<kInside, 1, kWorkers>();
    if (!ctx.aborted()) {
      if (!kCase.no_barrier || threadIdx.x >= 32) delay(rng);
#pragma unroll 1
      for (u32 at = threadIdx.x * 16; at < pair.bytes; at += kWorkers * 16) {
        Vec16 v;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) v.x[k] = pattern(pair.who, turn, at / 4 + k);
        st_vec16(reinterpret_cast<void*>(pair.slot(turn) + at), v);
      }
    }
    if constexpr (!kCase.no_barrier) named_barrier_sync<kInside, 1, kWorkers>();
    if (threadIdx.x == 0 && !kCase.post_first) post_message<kCase>(ctx, pair);
  }
}

// One warp's 16 rows of a panel of 64 rows of 128 bytes; lanes and swizzle as stage_tile.
MK_DEVICE void fill_panel(u32 panel, u32 who, u32 turn) {
  const u32 row = threadIdx.x / 32 * 16 + lane_index() % 16;
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    u32 v[4];
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const u32 block_row = threadIdx.x / 32 * 16 + k % 2 * 8 + lane_index() / 4;
      v[k] = pattern(who, turn, block_row * 32 + (j * 2 + k / 2) * 4 + lane_index() % 4);
    }
    const u32 chunk = (j * 2 + lane_index() / 16) ^ row % 8;
    stmatrix_x4(panel + row * 128 + chunk * 16, v[0], v[1], v[2], v[3]);
  }
}

MK_DEVICE u64 source_of(const Context& ctx, const Pair& pair, u32 stage) {
  return ctx.header.scratch + (static_cast<u64>(pair.index) * kStages + stage) * kSlotBytes;
}

// Workers: fill staging (edge `staged`), or the source of the forwarding loader (a signal in a plan; here an mbarrier).
template <Case kCase>
MK_DEVICE void fill_staging(const Context& ctx, const Smem& smem, const Pair& pair) {
  constexpr bool kForward = kCase.writer == Writer::Forward;
  RingCursor<kStages> staging;
  Rng rng = Rng::seeded(ctx);
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i;
    mbarrier_wait<kInside>(smem.free(staging.stage), staging.phase ^ 1);
    if (!ctx.aborted()) {
      delay(rng);
      const u32 piece = smem.piece(staging.stage);
      if constexpr (kCase.writer == Writer::Panel) {
        fill_panel(piece, pair.who, turn);
      } else {
#pragma unroll 1
        for (u32 j = threadIdx.x; j < pair.bytes / 4; j += kWorkers) {
          const u32 v = pattern(pair.who, turn, j);
          if constexpr (kForward) {
            st_u32(reinterpret_cast<u32*>(source_of(ctx, pair, staging.stage)) + j, v);
          } else {
            st_shared(piece + j * 4, v);
          }
        }
      }
    }
    if constexpr (!kForward && !kCase.no_shared_fence) fence_proxy_async_shared();
    __syncwarp();
    const u32 bar = kForward ? smem.ready(staging.stage) : smem.full(staging.stage);
    if (lane_index() == 0) mbarrier_arrive<kInside>(bar);
    staging.advance();
  }
}

template <Case kCase>
MK_DEVICE void load_forward(const Context& ctx, const Smem& smem, const Pair& pair) {
  RingCursor<kStages> ring;
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    mbarrier_wait<kInside>(smem.ready(ring.stage), ring.phase);
    const u32 full = smem.full(ring.stage);
    if (ctx.aborted()) {
      mbarrier_arrive<kInside>(full);
    } else {
      if constexpr (!kCase.no_shared_fence) fence_proxy_async_global();
      mbarrier_arrive_expect_tx<kInside>(full, pair.bytes);
      bulk_load(smem.piece(ring.stage), reinterpret_cast<const void*>(source_of(ctx, pair, ring.stage)), pair.bytes,
                full);
    }
    ring.advance();
  }
}

template <Case kCase>
MK_DEVICE void issue_store(const Params& p, const Pair& pair, u32 piece, u32 turn) {
  if constexpr (kCase.writer == Writer::Tensor || kCase.writer == Writer::Panel) {
    const u32 map = kCase.writer == Writer::Panel ? kPanelMap : kStoreMap + pair.size_class;
    tma_store_2d(&p.maps[map], piece, 0, pair.row(turn));
  } else {
    bulk_store(reinterpret_cast<void*>(pair.slot(turn)), piece, pair.bytes);
  }
}

// One lane. In one turn of eight the payload stands behind a queue of other stores.
template <Case kCase>
MK_DEVICE void store_messages(const Context& ctx, const Params& p, const Smem& smem, const Pair& pair) {
  RingCursor<kStages> staging;
  Rng rng = Rng::seeded(ctx);
  const u64 junk = ctx.sym(pair.target) + kJunkAt + static_cast<u64>(pair.index) * kSlotBytes;
#pragma unroll 1
  for (u32 i = 0; i < kTurns; ++i) {
    const u32 turn = pair.first_turn + i, piece = smem.piece(staging.stage), free = smem.free(staging.stage);
    mbarrier_wait<kInside>(smem.full(staging.stage), staging.phase);
    wait_slot<kCase>(ctx, pair, turn);
    if constexpr (kCase.post_first) post_message<kCase>(ctx, pair);
    if (!ctx.aborted()) {
      delay(rng);
      const u32 queue = rng.next() % 8 == 0 ? kJunkStores : 0;
#pragma unroll 1
      for (u32 k = 0; k < queue; ++k) bulk_store(reinterpret_cast<void*>(junk), piece, kSlotBytes);
      issue_store<kCase>(p, pair, piece, turn);
    }
    bulk_commit();
    if constexpr (kCase.early_drained) mbarrier_arrive<kInside>(free);
    if constexpr (kCase.done == Done::Issued) post_message<kCase>(ctx, pair);
    bulk_wait_read<0>();
    if constexpr (!kCase.early_drained) mbarrier_arrive<kInside>(free);
    if constexpr (kCase.done == Done::Read) post_message<kCase>(ctx, pair);
    if constexpr (kCase.done == Done::Written) {
      bulk_wait_written<0>();
      delay(rng);
      if constexpr (!kCase.post_first) post_message<kCase>(ctx, pair);
    }
    staging.advance();
  }
}

template <Case kCase>
MK_DEVICE void write_messages(const Context& ctx, const Params& p, const Smem& smem, const Pair& pair) {
  if constexpr (kCase.writer == Writer::Rows) {
    if (threadIdx.x < kWorkers) write_rows<kCase>(ctx, pair);
  } else if (threadIdx.x < kWorkers) {
    fill_staging<kCase>(ctx, smem, pair);
  } else if (threadIdx.x == kWorkers) {
    store_messages<kCase>(ctx, p, smem, pair);
  } else if (kCase.writer == Writer::Forward && threadIdx.x == kWorkers + 32) {
    load_forward<kCase>(ctx, smem, pair);
  }
}
