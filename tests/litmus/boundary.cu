// Kernel boundaries: odd launches write by asynchronous stores and end with no more than the wait for their staging
// (the storers' exit when no post follows); even launches read on the same stream.
struct Boundary {
  Writer writer = Writer::Tensor;
  Reading reading = Reading::Generic;
  bool no_drain = false;  // staging is overwritten while the stores still read it
};

template <Boundary kCase>
MK_DEVICE void write_and_exit(const Context& ctx, const Params& p, const Smem& smem, u32 turn) {
  const u32 target = (ctx.header.rank + 1) % ctx.header.world, piece = smem.piece(0);
#pragma unroll 1
  for (u32 j = threadIdx.x; j < kSlotBytes / 4; j += kThreads) st_shared(piece + j * 4, pattern(blockIdx.x, turn, j));
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    const u64 junk = ctx.sym(target) + kJunkAt + static_cast<u64>(blockIdx.x % kPairs) * kSlotBytes;
#pragma unroll 1
    for (u32 k = 0; k < kJunkStores; ++k) bulk_store(reinterpret_cast<void*>(junk), smem.piece(1), kSlotBytes);
    if constexpr (kCase.writer == Writer::Tensor) {
      tma_store_2d(&p.maps[kStoreMap + kClasses - 1], piece, 0, blockIdx.x * kSlotRows);
    } else {
      const u64 to = ctx.sym(target) + kPayloadAt + static_cast<u64>(blockIdx.x) * kSlotBytes;
      bulk_store(reinterpret_cast<void*>(to), piece, kSlotBytes);
    }
    bulk_commit();
    if constexpr (!kCase.no_drain) bulk_wait_read<0>();
  }
  __syncthreads();
  // What a next CTA on this SM would do.
#pragma unroll 1
  for (u32 j = threadIdx.x; j < kSlotBytes / 4; j += kThreads) st_shared(piece + j * 4, ~turn);
}

template <Boundary kCase>
MK_DEVICE void read_back(const Context& ctx, const Params& p, const Smem& smem, u32 turn) {
  const u32 target = (ctx.header.rank + 1) % ctx.header.world, other = (blockIdx.x + 37) % gridDim.x;
  Count count(p);
  count.turns = threadIdx.x == 0;
  if constexpr (kCase.reading == Reading::Generic) {
    const u64 from = ctx.sym(target) + kPayloadAt + static_cast<u64>(other) * kSlotBytes;
#pragma unroll 1
    for (u32 j = threadIdx.x; j < kSlotBytes / 4; j += kThreads) {
      count.check(other, turn, j, ld_u32(reinterpret_cast<const u32*>(from) + j));
    }
  } else {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx<kInside>(smem.full(0), kSlotBytes);
      tma_load_2d(smem.piece(0), &p.maps[kStoreMap + kClasses - 1], smem.full(0), 0, other * kSlotRows);
    }
    mbarrier_wait<kInside>(smem.full(0), 0);
#pragma unroll 1
    for (u32 j = threadIdx.x; j < kSlotBytes / 4; j += kThreads) {
      count.check(other, turn, j, ld_shared(smem.piece(0) + j * 4));
    }
  }
  count.add();
}

template <Boundary kCase>
MK_DEVICE void kernel_boundary(const Params& p) {
  extern __shared__ __align__(1024) u8 shared[];
  const Smem smem{smem_address(shared)};
  Context ctx{p.header, smem.state(), 0, kEnteredWord};
  launch_begin(ctx);
  if (threadIdx.x == 0) smem.init_barriers(1, 1);
  launch_begin_sync();
  ctx.past = ctx.read_past();
  const u32 turn = (ctx.epoch() + 1) / 2;
  if (ctx.epoch() % 2 == 1) {
    write_and_exit<kCase>(ctx, p, smem, turn);
  } else {
    read_back<kCase>(ctx, p, smem, turn);
  }
  if (threadIdx.x == 64) launch_count_in(ctx);
  launch_end(ctx);
}
