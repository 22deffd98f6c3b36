// Named barriers (PTX ISA, "bar / barrier"). The id is an immediate: a register id reserves all sixteen.
template <u32 kEdge, u32 kId, u32 kThreads>
MK_DEVICE void named_barrier_sync() {
  static_assert(kId > 0 && kId < 16, "barrier 0 is __syncthreads");
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
// Counts this thread in, and goes on.
template <u32 kEdge, u32 kId, u32 kThreads>
MK_DEVICE void named_barrier_arrive() {
  static_assert(kId > 0 && kId < 16, "barrier 0 is __syncthreads");
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
