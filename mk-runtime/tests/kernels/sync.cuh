__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void add_release(u32* p, u32 v) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_release(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
__device__ __forceinline__ char* symmetric(const LaunchHeader& h, u32 rank) {
  return (char*)(h.sym_base + rank * h.sym_stride_bytes);
}
// Waits for a signal word of this rank; on expiry writes the fault record and gives up.
__device__ __forceinline__ bool wait_signal(const LaunchHeader& h, u32 word, u32 expected, u32 edge, u32 epoch, u32 tile) {
  const u32* p = (const u32*)symmetric(h, h.rank) + word;
  const u32* abort = &((const SymHeader*)symmetric(h, h.rank))->abort;
  const u32* told = &((const FaultRecord*)h.fault)->abort;
  const u64 start = now_ns();
  u32 seen;
  while ((int)((seen = load_acquire(p)) - expected) < 0) {
    u32 aborted = load_acquire(abort);
    if (!aborted) aborted = load_acquire(told);
    if (!aborted && now_ns() - start < h.wait_limit_ns) continue;
    FaultRecord* f = (FaultRecord*)h.fault;
    f->kind = aborted ? 4 : 1;
    f->rank = h.rank;
    f->cta = blockIdx.x;
    f->edge = edge;
    f->epoch = epoch;
    f->expected = expected;
    f->seen = seen;
    f->tile = tile;
    f->peer = aborted ? aborted - 1 : ~0u;
    f->waited_ns = now_ns() - start;
    f->word = word;
    store_release(&f->state, 2);
    for (u32 peer = 0; peer < h.world; ++peer)
      if (!aborted) store_release(&((SymHeader*)symmetric(h, peer))->abort, 1 + h.rank);
    return false;
  }
  return true;
}
