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
// The same by threads that have only read, through the tensor cores: they publish nothing, and a release would hold them up.
MK_DEVICE void mbarrier_arrive_mate(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
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

// Four floats to shared memory of some CTA of the cluster; they count as bytes at a barrier there (PTX ISA, "st.async").
MK_DEVICE void st_async_floats4(u32 address, const float* x, u32 bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(bar) : "memory");
}
struct alignas(16) Floats4 {
  float x[4];
};
MK_DEVICE Floats4 ld_shared_floats4(u32 address) {
  Floats4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3]) : "r"(address) : "memory");
  return v;
}

// A tensor copy to the same place in all CTAs of the cluster that `mask` names, each of which counts the bytes at its own barrier.
MK_DEVICE void tma_load_2d_multicast(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;"
      ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask) : "memory");
}
