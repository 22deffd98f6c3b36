// Plain CUDA kernels to test others against. They favour being evidently right; none uses tensor cores.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

// Element types, in the order of the host's table.
enum : u32 { BF16, F16, F32, E4M3, E5M2 };

__device__ __forceinline__ float load(const void* p, u32 dtype, u64 i) {
  if (dtype == BF16) return __uint_as_float((u32)((const u16*)p)[i] << 16);
  if (dtype == F32) return ((const float*)p)[i];
  u32 half;
  if (dtype == E4M3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(half) : "h"((u16)((const u8*)p)[i]));
  } else if (dtype == E5M2) {
    half = (u32)((const u8*)p)[i] << 8;
  } else {
    half = ((const u16*)p)[i];
  }
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)half));
  return v;
}

__device__ __forceinline__ void store(void* p, u32 dtype, u64 i, float v) {
  if (dtype == F32) {
    ((float*)p)[i] = v;
    return;
  }
  u16 h;
  if (dtype == E4M3 || dtype == E5M2) {
    // Saturates; e5m2 has an infinity behind its largest number.
    if (dtype == E4M3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.f), "f"(v));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.f), "f"(v));
      if (fabsf(v) >= 61440.f) ++h;
    }
    ((u8*)p)[i] = (u8)h;
    return;
  }
  if (dtype == BF16) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
  } else {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  }
  ((u16*)p)[i] = h;
}

// c[m, n] = (accumulate ? c[m, n] : 0) + sum over k of a(i, k) * b(k, j), k ascending, fp32.
// a(i, k) is a[i * a_row + k * a_col]; b(k, j) is b[k * b_row + j * b_col]; one of each pair is 1.
constexpr int BM = 128, BN = 128, BK = 16, PAD = 4, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) reference_gemm(
    float* c, const void* a, const void* b, u64 m, u64 n, u64 k, u64 a_row, u64 a_col, u64 b_row, u64 b_col,
    u32 a_dtype, u32 b_dtype, u32 accumulate) {
  __shared__ float sa[BK][BM + PAD], sb[BK][BN + PAD];
  const u64 m0 = (u64)blockIdx.y * BM, n0 = (u64)blockIdx.x * BN;
  const u32 t = threadIdx.x, ty = t / 16, tx = t % 16;
  float acc[8][8] = {};
  for (u64 k0 = 0; k0 < k; k0 += BK) {
    for (u32 e = t; e < BM * BK; e += THREADS) {
      // Neighbouring threads read neighbouring addresses, whichever way the operand lies.
      const u32 i = a_col == 1 ? e / BK : e % BM, kk = a_col == 1 ? e % BK : e / BM;
      const bool in = m0 + i < m && k0 + kk < k;
      sa[kk][i] = in ? load(a, a_dtype, (m0 + i) * a_row + (k0 + kk) * a_col) : 0.f;
    }
    for (u32 e = t; e < BN * BK; e += THREADS) {
      const u32 j = b_col == 1 ? e % BN : e / BK, kk = b_col == 1 ? e / BN : e % BK;
      const bool in = n0 + j < n && k0 + kk < k;
      sb[kk][j] = in ? load(b, b_dtype, (k0 + kk) * b_row + (n0 + j) * b_col) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BK; ++kk) {
      float ra[8], rb[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) ra[i] = sa[kk][ty * 8 + i];
#pragma unroll
      for (int j = 0; j < 8; ++j) rb[j] = sb[kk][tx + j * 16];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(ra[i], rb[j], acc[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const u64 row = m0 + ty * 8 + i, col = n0 + tx + j * 16;
      if (row < m && col < n) {
        float* p = c + row * n + col;
        *p = (accumulate ? *p : 0.f) + acc[i][j];
      }
    }
}

// x[i] = uniform in [-scale, scale), a function of seed and index alone. `random_value` in mod.rs is the same.
extern "C" __global__ void reference_fill(void* x, u64 n, u32 dtype, u64 seed, float scale) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    u64 z = (seed + 1) * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const float unit = (float)(u32)(z >> 40) * (1.f / 8388608.f) - 1.f;
    store(x, dtype, i, unit * scale);
  }
}

// Elementwise operations, as `MapOp` in mod.rs numbers them.
enum : u32 { CAST = 0, ADD = 5, MUL = 6, SWIGLU = 7, BIAS = 8, SCALE = 9, SWIGLU_GRAD = 14, SCALE_ROWS = 15, RECIPROCAL_ROOT = 16, SCALE_STEPS = 17, SCALE_BLOCKS = 18, ROPE = 19, FACTORS = 20, OVER_STEPS = 21 };
// Curves from 32 on, and their slopes from 64 on, in the order of `Curve` in mk-dtype.
enum : u32 { GELU_ERF = 32, GELU_TANH, SILU, RELU };
enum : u32 { GELU_GRAD = 64, GELU_TANH_GRAD, SILU_GRAD, RELU_GRAD };

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }

// Beyond 100 slopes are what they are there.
__device__ __forceinline__ float slope(u32 op, float x) {
  if (op == GELU_GRAD) return 0.5f * (1.f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
  if (op == RELU_GRAD) return x > 0.f ? 1.f : 0.f;
  const float u = op == SILU_GRAD ? x : 1.5957691f * (x + 0.044715f * x * x * x);
  const float inner = op == SILU_GRAD ? 1.f : 1.5957691f * (1.f + 0.134145f * x * x);
  const float s = 1.f / (1.f + expf(-u));
  return s + x * s * (1.f - s) * inner;
}

// out[i] = op(a[i], b[i]). SWIGLU: a is [rows, 2, inner], gate then up, and out [rows, inner]. BIAS: b is [inner].
extern "C" __global__ void reference_map(void* out, const void* a, const void* b, u64 n, u64 inner, u64 b_inner, u32 op,
                                         float factor, u32 out_dtype, u32 a_dtype, u32 b_dtype) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    // Of gates and ups there are two for each result.
    const u64 row = i / inner, at = op == SWIGLU ? row * 2 * inner + i % inner : op == SWIGLU_GRAD ? row / 2 * inner + i % inner : i;
    const float x = op == FACTORS ? 0.f : load(a, a_dtype, at);
    float y = x;
    if (op == RELU) y = x < 0.f ? 0.f : x;  // not fmaxf, which would make 0 of a NaN
    if (op == SILU) y = silu(x);
    if (op == GELU_ERF) y = 0.5f * x * (1.f + erff(x * 0.70710678f));
    if (op == GELU_TANH) y = 0.5f * x * (1.f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    if (op == ADD) y = x + load(b, b_dtype, i);
    if (op == MUL) y = x * load(b, b_dtype, i);
    if (op == SWIGLU) y = silu(x) * load(a, a_dtype, at + inner);
    if (op == BIAS) y = x + load(b, b_dtype, i % inner);
    if (op == SCALE_ROWS) y = x * load(b, b_dtype, row);
    if (op == SCALE_STEPS) y = x * load(b, b_dtype, i % inner / 128 * (n / inner) + row);
    if (op == SCALE_BLOCKS) y = x * load(b, b_dtype, row / 128 * ((inner + 127) / 128) + i % inner / 128);
    if (op == SCALE) y = x * factor;
    if (op == OVER_STEPS) y = __fdiv_rn(x, load(b, b_dtype, i % inner / 128 * (n / inner) + row));
    if (op == FACTORS) {
      // Of row i % inner of `a`, columns from 128 * row on; a NaN is above all others.
      u32 magnitude = 0;
      for (u64 c = row * 128; c < row * 128 + 128 && c < b_inner; ++c) {
        magnitude = max(magnitude, __float_as_uint(load(a, a_dtype, i % inner * b_inner + c)) & 0x7fffffffu);
      }
      y = magnitude ? __fdiv_rn(__uint_as_float(magnitude), factor) : 1.f;
    }
    if (op == ROPE) {
      const u64 half = b_inner / 2, place = i % inner % b_inner, angle = row * b_inner + place % half;
      const float other = load(a, a_dtype, place < half ? i + half : i - half), sine = load(b, b_dtype, angle + half) * factor;
      y = x * load(b, b_dtype, angle) + (place < half ? -other : other) * sine;
    }
    if (op == RECIPROCAL_ROOT) y = 1.f / sqrtf(x + factor);
    if (op == SWIGLU_GRAD) {
      const u64 gate = row / 2 * 2 * inner + i % inner;
      const float g = load(b, b_dtype, gate), near = fminf(fmaxf(g, -100.f), 100.f);
      y = row % 2 ? x * silu(g) : x * slope(SILU_GRAD, near) * load(b, b_dtype, gate + inner);
    } else if (op >= GELU_GRAD) y = x * slope(op, fminf(fmaxf(load(b, b_dtype, i), -100.f), 100.f));
    store(out, out_dtype, i, y);
  }
}

// A score that stays below `cap`, where there is one.
__device__ __forceinline__ float capped(float score, float cap) { return cap > 0 ? cap * tanhf(score / cap) : score; }

// Where rows of a tensor are in the sequence: the first `count` from `first` on, the others from `second` on.
struct Places {
  i64 first;
  u64 count;
  i64 second;
  __device__ i64 operator()(u64 i) const { return i < count ? first + (i64)i : second + (i64)(i - count); }
};

// Documents of packed sequences: where each begins, and the last one ends. None: the whole sequence is one.
struct Documents {
  const i32* begins;
  u64 entries;
  // The document of a place: its first, and the one behind its last. Of none, nothing.
  __device__ void find(i64 place, i64& begin, i64& end) const {
    for (u64 n = 0; n + 1 < entries; ++n) {
      begin = begins[n], end = begins[n + 1];
      if (begin <= place && place < end) return;
    }
    begin = end = 0;
  }
  __device__ bool apart(i64 a, i64 b) const {
    if (!begins) return false;
    i64 begin, end;
    find(a, begin, end);
    return b < begin || b >= end;
  }
};

// o = softmax(scale * q k^T) v and the logarithms of the softmax's sums, for q [batch, queries, heads, depth], k [batch, keys, groups, depth],
// v and o with `wide` elements of a head, lse [batch, heads, queries]; depth and wide <= 256. Of `queries`, `count` are at `first` of the sequence and behind
// it, the others at `second`. Sums of a head have the exponential of its sink, where there are some. A warp for each row, two passes over the
// keys: the maximum, then sums.
extern "C" __global__ void __launch_bounds__(256) reference_attend(
    float* o, float* lse, const void* q, const void* k, const void* v, u64 batch, u64 queries, u64 keys, u64 heads,
    u64 groups, u64 depth, u64 wide, i64 first, u64 count, i64 second, const i32* begins, u64 entries, const float* sinks, u32 causal, u32 window,
    float scale, float cap, u32 q_dtype, u32 k_dtype) {
  const u32 lane = threadIdx.x % 32;
  const u64 rows = batch * queries * heads, warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    const u64 h = row % heads, i = row / heads % queries, b = row / heads / queries, g = h / (heads / groups);
    const i64 place = Places{first, count, second}(i);
    i64 begin = 0, end = keys;
    if (begins) Documents{begins, entries}.find(place, begin, end);
    end = causal && place + 1 < end ? place + 1 : end;
    begin = window && place + 1 - (i64)window > begin ? place + 1 - window : begin;
    const u64 seen = end > begin ? end : 0, from = end > begin ? begin : 0;
    float x[8], acc[8] = {};
    for (int e = 0; e < 8; ++e) x[e] = lane + 32 * e < depth ? load(q, q_dtype, row * depth + lane + 32 * e) : 0.f;
    const auto score = [&](u64 j) {
      const u64 at = ((b * keys + j) * groups + g) * depth;
      float dot = 0;
      for (int e = 0; e < 8; ++e)
        if (lane + 32 * e < depth) dot = fmaf(x[e], load(k, k_dtype, at + lane + 32 * e), dot);
      for (u32 step = 16; step; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
      return capped(dot * scale, cap);
    };
    const float sink = sinks ? sinks[h] : __int_as_float(0xff800000);
    float largest = sink, sum = 0;
    bool nan = false;
    for (u64 j = from; j < seen; ++j) {
      const float s = score(j);
      nan |= isnan(s);
      largest = fmaxf(largest, s);
    }
    for (u64 j = from; j < seen; ++j) {
      const float p = nan ? __int_as_float(0x7fffffff) : expf(score(j) - largest);
      const u64 at = ((b * keys + j) * groups + g) * wide;
      sum += p;
      for (int e = 0; e < 8; ++e)
        if (lane + 32 * e < wide) acc[e] = fmaf(p, load(v, k_dtype, at + lane + 32 * e), acc[e]);
    }
    if (sinks) sum += expf(sink - largest);
    for (int e = 0; e < 8; ++e)
      if (lane + 32 * e < wide) o[row * wide + lane + 32 * e] = seen ? acc[e] / sum : 0.f;
    if (lane == 0) lse[(b * heads + h) * queries + i] = seen || sinks ? largest + logf(sum) : __int_as_float(0xff800000);
  }
}

__device__ float sum_of_warp(float x) {
  for (u32 step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Of each row of o and d_o, [B, S, H, D]: {lse, o . d_o, 0, 0}, [B, H, S, 4].
extern "C" __global__ void __launch_bounds__(256) reference_attend_stats(
    float* stats, const void* o, const void* d_o, const float* lse, u64 batch, u64 queries, u64 heads, u64 depth, u32 o_dtype,
    u32 d_dtype) {
  const u32 lane = threadIdx.x % 32;
  const u64 rows = batch * queries * heads, warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    const u64 h = row % heads, i = row / heads % queries, b = row / heads / queries;
    float dot = 0;
    for (u64 e = lane; e < depth; e += 32) dot = fmaf(load(o, o_dtype, row * depth + e), load(d_o, d_dtype, row * depth + e), dot);
    dot = sum_of_warp(dot);
    const u64 at = (b * heads + h) * queries + i;
    if (lane < 4) stats[at * 4 + lane] = lane == 0 ? lse[at] : lane == 1 ? dot : 0.f;
  }
}

// One query and one key: the weight, and the score's gradient. `x`, `d` are parts of rows of q and d_o, `y`, `z` of k and v.
struct Pair {
  float weight, slope;
};
__device__ Pair pair(const float (&x)[8], const float (&d)[8], const float (&y)[8], const float (&z)[8], float scale, float cap,
                     float lse, float delta) {
  float score = 0, worth = 0;
  for (int e = 0; e < 8; ++e) score = fmaf(x[e], y[e], score), worth = fmaf(d[e], z[e], worth);
  const float t = capped(sum_of_warp(score) * scale, cap), share = cap > 0 ? t / cap : 0.f;
  const float weight = lse == __int_as_float(0xff800000) ? 0.f : expf(t - lse);
  return Pair{weight, weight * (sum_of_warp(worth) - delta) * (1.f - share * share)};
}

__device__ void load_row(float (&x)[8], const void* from, u32 dtype, u64 row, u64 depth) {
  for (int e = 0; e < 8; ++e) {
    const u64 at = threadIdx.x % 32 + 32 * e;
    x[e] = at < depth ? load(from, dtype, row * depth + at) : 0.f;
  }
}

__device__ void store_row(float* to, const float (&x)[8], float factor, u64 row, u64 depth) {
  for (int e = 0; e < 8; ++e) {
    const u64 at = threadIdx.x % 32 + 32 * e;
    if (at < depth) to[row * depth + at] = x[e] * factor;
  }
}

// Gradients of queries: a warp for each row.
extern "C" __global__ void __launch_bounds__(256) reference_attend_dq(
    float* dq, const void* q, const void* d_o, const float* stats, const void* k, const void* v, u64 batch, u64 queries, u64 keys,
    u64 heads, u64 groups, u64 depth, u64 wide, i64 q_first, u64 q_count, i64 q_second, i64 k_first, u64 k_count,
    i64 k_second, const i32* begins, u64 entries, u32 causal, u32 window, float scale, float cap, u32 q_dtype, u32 k_dtype) {
  const Documents documents{begins, entries};
  const Places q_places{q_first, q_count, q_second}, k_places{k_first, k_count, k_second};
  const u64 rows = batch * queries * heads, warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    const u64 h = row % heads, i = row / heads % queries, b = row / heads / queries, g = h / (heads / groups);
    float x[8], d[8], y[8], z[8], sum[8] = {};
    load_row(x, q, q_dtype, row, depth);
    load_row(d, d_o, q_dtype, row, wide);
    const float* of = stats + ((b * heads + h) * queries + i) * 4;
    for (u64 j = 0; j < keys; ++j) {
      if (causal && k_places(j) > q_places(i)) continue;
      if (window && k_places(j) + window <= q_places(i)) continue;
      if (documents.apart(q_places(i), k_places(j))) continue;
      load_row(y, k, k_dtype, (b * keys + j) * groups + g, depth);
      load_row(z, v, k_dtype, (b * keys + j) * groups + g, wide);
      const Pair p = pair(x, d, y, z, scale, cap, of[0], of[1]);
      for (int e = 0; e < 8; ++e) sum[e] = fmaf(p.slope, y[e], sum[e]);
    }
    store_row(dq, sum, scale, row, depth);
  }
}

// Gradients of keys and values: a warp for each row, over all heads of its group.
extern "C" __global__ void __launch_bounds__(256) reference_attend_dkv(
    float* dk, float* dv, const void* q, const void* d_o, const float* stats, const void* k, const void* v, u64 batch, u64 queries,
    u64 keys, u64 heads, u64 groups, u64 depth, u64 wide, i64 q_first, u64 q_count, i64 q_second, i64 k_first, u64 k_count,
    i64 k_second, const i32* begins, u64 entries, u32 causal, u32 window, float scale, float cap, u32 q_dtype, u32 k_dtype) {
  const Documents documents{begins, entries};
  const Places q_places{q_first, q_count, q_second}, k_places{k_first, k_count, k_second};
  const u64 rows = batch * keys * groups, warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows; row += warps) {
    const u64 g = row % groups, j = row / groups % keys, b = row / groups / keys;
    float x[8], d[8], y[8], z[8], of_key[8] = {}, of_value[8] = {};
    load_row(y, k, k_dtype, row, depth);
    load_row(z, v, k_dtype, row, wide);
    for (u64 h = g * (heads / groups); h < (g + 1) * (heads / groups); ++h) {
      for (u64 i = 0; i < queries; ++i) {
        if (causal && k_places(j) > q_places(i)) continue;
        if (window && k_places(j) + window <= q_places(i)) continue;
        if (documents.apart(q_places(i), k_places(j))) continue;
        load_row(x, q, q_dtype, (b * queries + i) * heads + h, depth);
        load_row(d, d_o, q_dtype, (b * queries + i) * heads + h, wide);
        const float* of = stats + ((b * heads + h) * queries + i) * 4;
        const Pair p = pair(x, d, y, z, scale, cap, of[0], of[1]);
        for (int e = 0; e < 8; ++e) of_key[e] = fmaf(p.slope, x[e], of_key[e]), of_value[e] = fmaf(p.weight, d[e], of_value[e]);
      }
    }
    store_row(dk, of_key, scale, row, depth);
    store_row(dv, of_value, 1.f, row, wide);
  }
}

// Per 128 x 128 tile of [rows, cols]: sum of (x - ref)^2, sum of ref^2, count of elements of x that are not finite where
// ref is within the range of x's type, and the largest |x - ref|. What is beyond the range is left out of all others.
struct TileError { double error, reference; u64 nonfinite; double largest; };

// Whether x is infinite or NaN as ref is in x's type. What is near the end of the range may be either.
__device__ __forceinline__ bool same_beyond(float x, float ref, u32 x_dtype) {
  if (isnan(x)) return isnan(ref);
  const float end = x_dtype == 1 ? 65504.f : 3.3895314e38f;
  return fabsf(ref) >= end * (1.f - 1.f / 64) && (x > 0) == (ref > 0);
}

extern "C" __global__ void __launch_bounds__(256) reference_error(TileError* tiles, const void* x, const void* ref,
                                                                  u64 rows, u64 cols, u32 x_dtype, u32 ref_dtype) {
  __shared__ double se[256], sr[256], sl[256];
  __shared__ u64 sn[256];
  const u32 t = threadIdx.x;
  double e = 0, r = 0, largest = 0;
  u64 bad = 0;
  for (u32 i = t; i < 128 * 128; i += 256) {
    const u64 row = (u64)blockIdx.y * 128 + i / 128, col = (u64)blockIdx.x * 128 + i % 128;
    if (row >= rows || col >= cols) continue;
    const double want = load(ref, ref_dtype, row * cols + col);
    const float got = load(x, x_dtype, row * cols + col);
    if (isfinite(got)) {
      const double off = got - want;
      r += want * want;
      e += off * off;
      largest = fmax(largest, fabs(off));
    } else if (!same_beyond(got, (float)want, x_dtype)) {
      r += want * want;
      ++bad;
    }
  }
  se[t] = e;
  sr[t] = r;
  sl[t] = largest;
  sn[t] = bad;
  __syncthreads();
  for (u32 half = 128; half > 0; half /= 2) {
    if (t < half) {
      se[t] += se[t + half];
      sr[t] += sr[t + half];
      sl[t] = fmax(sl[t], sl[t + half]);
      sn[t] += sn[t + half];
    }
    __syncthreads();
  }
  if (t == 0) tiles[(u64)blockIdx.y * gridDim.x + blockIdx.x] = {se[0], sr[0], sn[0], sl[0]};
}
