// The grid of message passing: writing CTAs, reading CTAs, noise.

// Loads L2, HBM, NVLink and, every other CTA, the copy engine of its SM, until this rank's readers are done.
MK_DEVICE void make_noise(const Context& ctx, const Smem& smem, u32 index) {
  const u32 rank = ctx.header.rank, target = (rank + 1) % ctx.header.world;
  const u32* done = ctx.signal(rank, kDoneWord);
  const u64 begin = globaltimer_ns();
  const u64 there = ctx.sym(target) + kNoiseAt + static_cast<u64>(index) * kNoiseBytes;
  Rng rng = Rng::seeded(ctx);
#pragma unroll 1
  for (;;) {
    const bool over = reached(ld_relaxed_sys(done), ctx.epoch() * kPairs) ||
                      ld_relaxed_sys(&ctx.sym_header(rank)->abort) != 0 ||
                      globaltimer_ns() - begin > 2 * ctx.header.wait_limit_ns;
    if (__syncthreads_or(over)) return;
    if (index % 2 == 0) {
      const u64 from = ctx.header.scratch + kSourceBytes + rng.next() % (kLitterBytes / kNoiseBytes) * kNoiseBytes;
#pragma unroll 4
      for (u32 at = threadIdx.x * 16; at < kNoiseBytes; at += kThreads * 16) {
        st_vec16(reinterpret_cast<void*>(there + at), ld_vec16(reinterpret_cast<const void*>(from + at)));
      }
    } else if (threadIdx.x == 0) {
#pragma unroll 1
      for (u32 at = 0; at < kNoiseBytes; at += kSlotBytes) {
        bulk_store(reinterpret_cast<void*>(there + at), smem.base, kSlotBytes);
      }
      bulk_commit();
      bulk_wait_read<0>();
    }
  }
}

template <Case kCase>
MK_DEVICE void message_passing(const Params& p) {
  extern __shared__ __align__(1024) u8 shared[];
  const Smem smem{smem_address(shared)};
  Context ctx{p.header, smem.state(), 0, kEnteredWord};
  launch_begin(ctx);
  const bool writer = blockIdx.x < kPairs, reader = !writer && blockIdx.x < 2 * kPairs;
  constexpr bool kForward = kCase.writer == Writer::Forward;
  if (threadIdx.x == 0) {
    // A worker warp arrives once, and so do a lane and a TMA load.
    smem.init_barriers(writer && !kForward ? kWorkerWarps : 1, writer ? 1 : kWorkerWarps);
  }
  launch_begin_sync();
  ctx.past = ctx.read_past();
  if (threadIdx.x == kThreads - 1) launch_count_in(ctx);
  if (blockIdx.x == 0 && threadIdx.x == 0) post_entered<kEntryEdge>(ctx, 0, 1);
  if (writer) {
    write_messages<kCase>(ctx, p, smem, pair_of<kCase>(ctx, blockIdx.x, true));
  } else if (reader) {
    read_messages<kCase>(ctx, p, smem, pair_of<kCase>(ctx, blockIdx.x - kPairs, false));
    if (threadIdx.x == 0) red_add_gpu(ctx.signal(ctx.header.rank, kDoneWord), 1);
  } else {
    make_noise(ctx, smem, blockIdx.x - 2 * kPairs);
  }
  launch_end(ctx);
}
