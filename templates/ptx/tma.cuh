// Tensor copies through a tensor map (PTX ISA, "cp.async.bulk.tensor"). One thread issues.
// Coordinates are in elements, innermost first; boxes that stick out read zeros and write nothing.
MK_DEVICE void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// What is read once leaves L2 first (PTX ISA, "createpolicy"): before lines that somebody will want again, and before lines
// whose eviction is a write.
template <bool kEvictFirst = false>
MK_DEVICE void tma_load_2d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y) {
  if constexpr (kEvictFirst) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "l"(policy) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
  }
}

// The same of a map with three dimensions.
template <bool kEvictFirst = false>
MK_DEVICE void tma_load_3d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, i32 z) {
  if constexpr (kEvictFirst) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy) : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
  }
}

// The same of a map with four.
MK_DEVICE void tma_load_4d(u32 dst, const TensorMap* map, u32 bar, i32 x, i32 y, i32 z, i32 w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      ::"r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Joins the issuing thread's current bulk group; see bulk.cuh.
MK_DEVICE void tma_store_2d(const TensorMap* map, u32 src, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               ::"l"(map), "r"(src), "r"(x), "r"(y) : "memory");
}
