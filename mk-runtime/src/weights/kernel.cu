// Weights of bf16 in e4m3, as stored and transposed, with a factor for each block of 128 x 128. Each element is read once; a block of threads has one
// factor. Numbers of rows and columns are multiples of 8.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 kBlock = 128, kThreads = 256;
constexpr float kLargest = 448.f;  // of e4m3

// x / factor, rounded once, by a product and its correction (Markstein), with the sign of x: `__fdiv_rn` has a branch. Of a factor within 1e-30 and
// 1e30; quotients so small that bits are lost are 0 in e4m3.
__device__ __forceinline__ float quotient(float x, float factor, float inverse) {
  const float q = x * inverse;
  return copysignf(__fmaf_rn(__fmaf_rn(-q, factor, x), inverse, q), x);
}

// Two bytes: the first in the lower one.
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u16 out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(hi), "f"(lo));
  return out;
}

// Bytes of 4 rows, 4 each, become those of 4 columns.
__device__ __forceinline__ void turn(u32 (&x)[4]) {
  const u32 a = __byte_perm(x[0], x[1], 0x5140), b = __byte_perm(x[0], x[1], 0x7362);
  const u32 c = __byte_perm(x[2], x[3], 0x5140), d = __byte_perm(x[2], x[3], 0x7362);
  x[0] = __byte_perm(a, c, 0x5410);
  x[1] = __byte_perm(a, c, 0x7632);
  x[2] = __byte_perm(b, d, 0x5410);
  x[3] = __byte_perm(b, d, 0x7632);
}

// x [z, rows, columns]; values the same, turned [z, columns, rows]; factors [z, ceil(rows / 128), ceil(columns / 128)], and transposed.
extern "C" __global__ void __launch_bounds__(kThreads, 4) weights_quantize(
    const u8* x, u8* values, float* factors, u8* turned, float* turned_factors, u64 rows, u64 columns) {
  __shared__ u64 tile[kBlock * kBlock / 8];
  __shared__ u32 most[kThreads / 32];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // A thread has 8 rows of 8 elements; 16 neighbouring lanes have whole rows of the block.
  const u32 group = warp * 2 + lane / 16, vector = lane % 16;
  const u64 row = u64{blockIdx.y} * kBlock + group * 8, column = u64{blockIdx.x} * kBlock + vector * 8;
  const bool there = row < rows && column < columns;
  const u64 first = (blockIdx.z * rows + row) * columns + column;
  uint4 v[8];
  u32 magnitude = 0;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    v[i] = there ? __ldg(reinterpret_cast<const uint4*>(x + (first + i * columns) * 2)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const u32 two = j == 0 ? v[i].x : j == 1 ? v[i].y : j == 2 ? v[i].z : v[i].w;
      magnitude = max(magnitude, max(two << 16 & 0x7fffffffu, two & 0x7fff0000u));
    }
  }
  magnitude = __reduce_max_sync(0xffffffffu, magnitude);
  if (lane == 0) most[warp] = magnitude;
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < kThreads / 32; ++i) magnitude = max(magnitude, most[i]);
  // 1 for a block of zeros. Bits of a NaN compare highest, so that a NaN stays.
  const float factor = magnitude == 0 ? 1.f : __fdiv_rn(__uint_as_float(magnitude), kLargest);
  const float inverse = __frcp_rn(factor);
  // Outside of this range remainders lose bits, or the inverse is infinite.
  const bool plain = factor > 1e-30f && factor < 1e30f;
  if (threadIdx.x == 0) {
    const u64 blocks = gridDim.x, of_rows = gridDim.y;
    factors[(blockIdx.z * of_rows + blockIdx.y) * blocks + blockIdx.x] = factor;
    turned_factors[(blockIdx.z * blocks + blockIdx.x) * of_rows + blockIdx.y] = factor;
  }
  u32 lo[8], hi[8];  // of each row the first and the last four bytes
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    u32 pairs[4];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      const u32 two = j == 0 ? v[i].x : j == 1 ? v[i].y : j == 2 ? v[i].z : v[i].w;
      const float a = __uint_as_float(two << 16), b = __uint_as_float(two & 0xffff0000u);
      pairs[j] = plain ? pack(quotient(a, factor, inverse), quotient(b, factor, inverse)) : pack(__fdiv_rn(a, factor), __fdiv_rn(b, factor));
    }
    lo[i] = pairs[0] | pairs[1] << 16;
    hi[i] = pairs[2] | pairs[3] << 16;
    if (there) *reinterpret_cast<uint2*>(values + first + i * columns) = make_uint2(lo[i], hi[i]);
  }
  // 8 x 8 bytes turned, by quarters, into words of a column's 8 rows. The place of a column's 16 words is swizzled by column / 8: 16 lanes meet in no
  // bank.
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    u32 above[4], below[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      above[i] = half ? hi[i] : lo[i];
      below[i] = half ? hi[i + 4] : lo[i + 4];
    }
    turn(above);
    turn(below);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      tile[(vector * 8 + half * 4 + i) * 16 + (group ^ vector)] = u64{below[i]} << 32 | above[i];
    }
  }
  __syncthreads();
  const u64 from = u64{blockIdx.y} * kBlock + vector * 8;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 own = i * 16 + group;  // a column of the block
    const u64 at = u64{blockIdx.x} * kBlock + own;
    if (from < rows && at < columns) {
      *reinterpret_cast<u64*>(turned + (blockIdx.z * columns + at) * rows + from) = tile[own * 16 + (vector ^ own / 8)];
    }
  }
}
