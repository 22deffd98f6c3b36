// One 128 x 128 tile per CTA: TMA loads into a 4-stage ring, wgmma, plain stores. Exercises what generated kernels use.
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(64) TensorMap { u64 opaque[16]; };

constexpr u32 TILE = 128, DEPTH = 64, STAGES = 4, OPERAND_BYTES = TILE * DEPTH * 2;

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void wait_parity(u32 barrier, u32 parity) {
  u32 done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  }
}

__device__ __forceinline__ void load_tile(u32 to, const TensorMap* map, u32 barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// K-major operand with 128-byte swizzle (PTX ISA, wgmma matrix descriptor).
__device__ __forceinline__ u64 operand(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void multiply(float (&d)[16], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(256, 1) gemm_tile(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int n, int k) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ __align__(8) u64 full[STAGES];
  const u32 base = shared_address(ring);
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < STAGES; ++s)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&full[s])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  float d[16] = {};
  const u32 group = threadIdx.x / 128;
  for (int step = 0; step < k / (int)DEPTH; ++step) {
    const u32 stage = step % STAGES, at = base + stage * 2 * OPERAND_BYTES, barrier = shared_address(&full[stage]);
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :: "r"(barrier), "r"(2 * OPERAND_BYTES) : "memory");
      load_tile(at, &a, barrier, step * DEPTH, blockIdx.y * TILE);
      load_tile(at + OPERAND_BYTES, &b, barrier, step * DEPTH, blockIdx.x * TILE);
    }
    wait_parity(barrier, step / STAGES & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (u32 kk = 0; kk < DEPTH / 16; ++kk)
      multiply(d, operand(at + group * 64 * DEPTH * 2 + kk * 32), operand(at + OPERAND_BYTES + kk * 32));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
  }
  const u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const u64 row = blockIdx.y * TILE + group * 64 + warp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float* p = c + row * n + blockIdx.x * TILE + j * 8 + lane % 4 * 2;
    p[0] = d[j * 4];
    p[1] = d[j * 4 + 1];
    p[8 * (u64)n] = d[j * 4 + 2];
    p[8 * (u64)n + 1] = d[j * 4 + 3];
  }
}
