// The hand-shake of ranks: hash, then the count that covers it (sync/launch.cuh). Every CTA plays it in an area of its
// own, with an epoch a turn; the hash changes with the epoch, so that a stale one shows.
struct Handshake {
  bool count_first = false;   // the count before the hash
  bool relaxed_post = false;  // red.relaxed for red.release
  bool relaxed_wait = false;  // ld.relaxed for ld.acquire
};

template <Handshake kCase>
MK_DEVICE void post_broken(const Context& ctx, Rng& rng) {
  const u32 slot = (ctx.epoch() & 1) * MAX_RANKS + ctx.header.rank;
#pragma unroll 1
  for (u32 p = 0; p < ctx.header.world; ++p) {
    u32* hash = &ctx.sym_header(p)->launch_hash[slot];
    u32* word = ctx.signal(p, ctx.entered + ctx.header.rank);
    if constexpr (!kCase.count_first) st_relaxed_sys(hash, ctx.header.launch_hash);
    if constexpr (kCase.relaxed_post) {
      red_relaxed_add<Scope::Sys>(word, 1);
    } else {
      red_release_add<Scope::Sys>(word, 1);
    }
    if constexpr (kCase.count_first) {
      delay(rng);
      st_relaxed_sys(hash, ctx.header.launch_hash);
    }
  }
}

template <Handshake kCase>
MK_DEVICE bool wait_broken(const Context& ctx, u32 peer, u32 turn, Count& count) {
  const u32* word = ctx.signal(ctx.header.rank, ctx.entered + peer);
  bool ok;
  if constexpr (kCase.relaxed_wait) {
    ok = wait_relaxed(ctx, word, ctx.epoch(), turn, ctx.header.entry_limit_ns);
  } else {
    ok = wait_word<kEntryEdge, Scope::Sys, true>(ctx, word, ctx.epoch(), WaitSite{turn, peer});
  }
  const u32 slot = (ctx.epoch() & 1) * MAX_RANKS + peer;
  const u32 seen = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->launch_hash[slot]);
  if (ok) count.check(blockIdx.x, ctx.epoch(), 0, seen);
  return ok;
}

template <Handshake kCase>
MK_DEVICE void shake_hands(const Params& p, u32 state, u32 first_epoch) {
  constexpr bool kBroken = kCase.count_first || kCase.relaxed_post || kCase.relaxed_wait;
  LaunchHeader header = p.header;
  header.sym_base += kAreasAt + static_cast<u64>(blockIdx.x) * kAreaBytes;
  Count count(p);
  Rng rng = Rng::seeded(Context{p.header, state, first_epoch - 1, kEnteredWord});
  bool ok = true;
#pragma unroll 1
  for (u32 i = 0; i < kTurns && ok; ++i) {
    const u32 epoch = first_epoch + i;
    header.launch_hash = pattern(blockIdx.x, epoch, 0);
    const Context ctx{header, state, epoch - 1, kEnteredWord};
    delay(rng);
    if constexpr (kBroken) {
      post_broken<kCase>(ctx, rng);
    } else {
      post_entered<kEntryEdge>(ctx, 0, 1);
    }
    delay(rng);
    for (u32 peer = 0; peer < header.world && ok; ++peer) {
      if constexpr (kBroken) {
        ok = wait_broken<kCase>(ctx, peer, i, count);
      } else {
        ok = wait_entered<kEntryEdge, Reader::Generic>(ctx, peer, i);  // a wrong hash is a fault: "plan mismatch"
      }
      count.turns += ok;
    }
  }
  count.add();
}

template <Handshake kCase>
MK_DEVICE void entered_handshake(const Params& p) {
  __shared__ CtaState state;
  Context ctx{p.header, smem_address(&state), 0, kEnteredWord};
  launch_begin(ctx);
  launch_begin_sync();
  ctx.past = ctx.read_past();
  if (threadIdx.x == 32) launch_count_in(ctx);
  if (threadIdx.x == 0) shake_hands<kCase>(p, ctx.state, (ctx.epoch() - 1) * kTurns + 1);
  launch_end(ctx);
}
