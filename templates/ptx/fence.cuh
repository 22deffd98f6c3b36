// Fences, also between proxies (PTX ISA, "membar / fence").
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
// The same of the shared memory of the cluster's CTAs; also after ordinary loads of it, before TMA writes there.
MK_DEVICE void fence_proxy_async_cluster() { asm volatile("fence.proxy.async.shared::cluster;" ::: "memory"); }
// Makes initialised mbarriers visible to the async proxy.
MK_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
