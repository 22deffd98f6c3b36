// What tensor cores do by themselves: products from operands that lie in shared memory, as generated kernels issue them (two consumer
// warpgroups, m64n256k16, bf16, accumulators in registers). Nothing is loaded meanwhile. Follows kernels.cu.

// A stage is 64 of K: 64 rows of A for each warpgroup and 256 columns of B, in rows of 128 bytes under the swizzle. `MMA_SMEM_BYTES` in
// kernels.rs is `kMmaSmemBytes`.
constexpr u32 kMmaStages = 4, kMmaGroups = 2, kMmaRows = 64, kMmaColumns = 256, kMmaK = 64;
constexpr u32 kMmaLineBytes = kMmaK * kElemBytes;
constexpr u32 kMmaStageLines = kMmaGroups * kMmaRows + kMmaColumns;
constexpr u32 kMmaStageBytes = kMmaStageLines * kMmaLineBytes;
constexpr u32 kMmaSmemBytes = kMmaStages * kMmaStageBytes + sm90_atom_bytes(kMmaLineBytes);
static_assert(kMmaSmemBytes == 197632, "host and device disagree on shared memory");
// Accumulators begin anew after so many rounds over all stages; `MMA_STEPS` in kernels.rs is `kMmaPass` times the stages.
constexpr u32 kMmaPass = 4;
static_assert(kMmaPass * kMmaStages == 16, "host and device disagree on steps");
// What each thread leaves to be compared.
constexpr u32 kMmaKept = 4;
constexpr u32 kMmaThreads = kMmaGroups * 128;

// Element k of line `line` of a stage; lines are rows of A, then columns of B. Any sign and mantissa, from 0.5 to 2: what operands are
// decides how much power products take.
MK_DEVICE u32 mma_bits(u32 stage, u32 line, u32 k) {
  u32 z = ((stage * kMmaStageLines + line) * kMmaK + k) * 0x9E3779B1u;
  z ^= z >> 15;
  z *= 0x2C1B3C6Du;
  z ^= z >> 13;
  return (z & 0x8000u) | (0x3f00u + (z & 0xffu));
}
MK_DEVICE float mma_value(u32 stage, u32 line, u32 k) { return __uint_as_float(mma_bits(stage, line, k) << 16); }

// Which accumulator of a thread is kept, and where it is in the product (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16").
MK_DEVICE constexpr u32 mma_kept(u32 i) { return i * 43 % 128; }
MK_DEVICE u32 mma_row(u32 thread, u32 d) {
  return thread / 128 * kMmaRows + thread % 128 / 32 * 16 + thread % 32 / 4 + d / 2 % 2 * 8;
}
MK_DEVICE u32 mma_column(u32 thread, u32 d) { return d / 4 * 8 + thread % 4 * 2 + d % 2; }

// `steps` stages in turn, a multiple of `MMA_STEPS`; with 0 it does everything but products.
extern "C" __global__ void __launch_bounds__(kMmaThreads, 1) probe_mma(float* kept, u32 steps) {
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 base = round_up(smem_address(smem), sm90_atom_bytes(kMmaLineBytes));
  for (u32 i = threadIdx.x; i < kMmaStages * kMmaStageBytes / 4; i += kMmaThreads) {
    const u32 at = 4 * i, line = at / kMmaLineBytes % kMmaStageLines, stage = at / kMmaStageBytes;
    // Where 16 bytes lie in a line depends on the line's number among the 8 of an atom.
    const u32 k = (at % kMmaLineBytes / 16 ^ line % 8) * 8 + at % 16 / kElemBytes;
    const u32 word = mma_bits(stage, line, k) | mma_bits(stage, line, k + 1) << 16;
    st_shared(base + at, word);
  }
  fence_proxy_async_shared();
  __syncthreads();

  const u32 group = threadIdx.x / 128;
  float d[kMmaColumns / 2];
#pragma unroll
  for (u32 i = 0; i < kMmaColumns / 2; ++i) d[i] = 0.0f;
  sm90_pin_registers(d);
#pragma unroll 1
  for (u32 step = 0; step < steps; ++step) {
    const u32 at = base + step % kMmaStages * kMmaStageBytes;
    const u64 a = sm90_descriptor_k_major(at + group * kMmaRows * kMmaLineBytes);
    const u64 b = sm90_descriptor_k_major(at + kMmaGroups * kMmaRows * kMmaLineBytes);
    sm90_wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < kMmaK / kWgmmaK; ++i) {
      // A descriptor counts in units of 16 bytes.
      const u32 further = i * kKMajorStepBytes / 16;
      const u32 accumulate = i != 0 || step % (kMmaPass * kMmaStages) != 0;
      sm90_wgmma<Dtype::Bf16, ALayout::KMajor, BLayout::KMajor>(d, a + further, b + further, accumulate);
    }
    sm90_wgmma_commit();
    sm90_wgmma_wait<1>();
  }
  sm90_wgmma_wait<0>();
  sm90_pin_registers(d);
#pragma unroll
  for (u32 i = 0; i < kMmaKept; ++i) kept[(blockIdx.x * kMmaThreads + threadIdx.x) * kMmaKept + i] = d[mma_kept(i)];
}

// Compares what `ctas` CTAs kept with sums made one by one. Products are exact in f32, and tensor cores may cut what does not fit into a
// sum of some hundreds: far less than the allowed difference, which is far less than a sum (90, say).
extern "C" __global__ void __launch_bounds__(256) probe_mma_check(const float* kept, u32 ctas, Report* report) {
  constexpr float kAllowed = 0.25f;
  u32 wrong = 0;
  for (u32 i = blockIdx.x * 256 + threadIdx.x; i < ctas * kMmaThreads * kMmaKept; i += gridDim.x * 256) {
    const u32 thread = i / kMmaKept % kMmaThreads, d = mma_kept(i % kMmaKept);
    const u32 row = mma_row(thread, d), column = kMmaGroups * kMmaRows + mma_column(thread, d);
    float sum = 0.0f;
    for (u32 stage = 0; stage < kMmaStages; ++stage) {
      for (u32 k = 0; k < kMmaK; ++k) sum += mma_value(stage, row, k) * mma_value(stage, column, k);
    }
    // Not a number is wrong, too.
    wrong += !(fabsf(kept[i] - kMmaPass * sum) <= kAllowed);
  }
  if (wrong != 0) red_add_gpu(&report->wrong, wrong);
}
