// Fences between proxies, and clusters (PTX ISA, "membar / fence" and "barrier.cluster").
// Orders what this thread did and saw before it, before what it does after it.
template <Scope kScope>
MK_DEVICE void fence_acq_rel() {
  if constexpr (kScope == Scope::Sys) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
  } else {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
}
// After an acquire, before a TMA read of global memory that other threads or peers wrote with ordinary stores.
MK_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// After ordinary stores to shared memory, before TMA or wgmma reads it; in each writing thread.
MK_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Makes initialised mbarriers visible to the cluster and to the async proxy.
MK_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

MK_DEVICE u32 cluster_cta_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// Every thread of every CTA of the cluster.
MK_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same, where the warps of a CTA may be diverged.
MK_DEVICE void cluster_sync_diverged() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Address of the same shared-memory object in another CTA of the cluster.
MK_DEVICE u32 map_to_cta(u32 address, u32 cta_rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(cta_rank));
  return r;
}
