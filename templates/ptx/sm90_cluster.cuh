// CTAs of a cluster: their barrier, and each other's shared memory (PTX ISA, "barrier.cluster", "mapa", "mbarrier").
MK_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Behind the initialisation of barriers that others arrive at, by every thread of the cluster; and before the first arrival there.
MK_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
MK_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Where CTA `rank` of the cluster has what lies at `address` in this one.
MK_DEVICE u32 cluster_address(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Arrives at a barrier of some CTA of the cluster, and releases to it what this thread has done and seen.
MK_DEVICE void mbarrier_arrive_cluster(u32 bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Waits for arrivals of the cluster's CTAs, which finish their loops even after an abort.
MK_DEVICE void mbarrier_wait_cluster(u32 bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  } while (done == 0);
}

// Four floats of some CTA of the cluster.
struct alignas(16) Floats4 {
  float x[4];
};
MK_DEVICE Floats4 ld_cluster_floats4(u32 address) {
  Floats4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3]) : "r"(address) : "memory");
  return v;
}
