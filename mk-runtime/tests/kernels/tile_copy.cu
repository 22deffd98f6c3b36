// CTA c of the cluster copies rows 16 + 16 c to 32 + 16 c.
extern "C" __global__ void __cluster_dims__(2, 1, 1) tile_copy(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ __align__(8) u64 bar;
  const u32 barrier = (u32)__cvta_generic_to_shared(&bar), to = (u32)__cvta_generic_to_shared(smem);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" :: "r"(barrier) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" :: "r"(barrier) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        :: "r"(to), "l"(&p.maps[0]), "r"(barrier), "r"(0), "r"(16 + 16 * blockIdx.x) : "memory");
  }
  __syncthreads();
  u32 done = 0;
  while (!done)
    asm volatile("{\n.reg .pred q;\nmbarrier.try_wait.parity.shared::cta.b64 q, [%1], 0;\nselp.u32 %0, 1, 0, q;\n}"
                 : "=r"(done) : "r"(barrier) : "memory");
  uint4* out = (uint4*)p.tensors[1] + blockIdx.x * 128;
  out[threadIdx.x] = ((const uint4*)smem)[threadIdx.x];
}
