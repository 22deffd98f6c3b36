// Scores in registers: the mask, the running maximum and sum of each row, weights. Registers lie as wgmma leaves them (see epilogue.cuh): a thread has parts of
// two rows, elements 4 i and 4 i + 1 of one, 4 i + 2 and 4 i + 3 of the other; four neighbouring lanes have the whole rows.
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.69314718055994531f;

MK_DEVICE float minus_infinity() { return __uint_as_float(0xff800000u); }

// The smallest exponents become zero, NaN stays NaN (PTX ISA, "ex2.approx.ftz").
MK_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MK_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

MK_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Within 2^-21; tanh.approx is within 2^-11 only, which a cap of 50 makes .02 of.
MK_DEVICE float tanh_of(float x) { return 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.0f * kLog2E * x)); }

// Leaves of products what exponentials are of.
template <class Config>
MK_DEVICE void attend_cap(float (&s)[Config::kScores]) {
  if constexpr (Config::kCapBits != 0) {
    const float factor = __uint_as_float(Config::kScaleBits) / __uint_as_float(Config::kCapBits);
#pragma unroll
    for (u32 i = 0; i < Config::kScores; ++i) s[i] = tanh_of(s[i] * factor);
  }
}

// Of two rows of a tile.
struct SoftmaxState {
  float most[2];  // of the scores
  float sum[2];   // of exp(scale * (score - most)), of this thread's part of the row
};

// Of the four lanes that share a row.
MK_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
MK_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Leaves nothing of scores whose column in the block is not below `bound`: of the thread's first row, of its second.
template <class Config>
MK_DEVICE void attend_mask(float (&s)[Config::kScores], i32 bound0, i32 bound1) {
  const i32 first = static_cast<i32>(lane_index() % 4 * 2);
  bound0 -= first;
  bound1 -= first;
#pragma unroll
  for (u32 i = 0; i < Config::kScores; ++i) {
    const i32 col = static_cast<i32>(i / 4 * 8 + i % 2);
    if (col >= (i % 4 < 2 ? bound0 : bound1)) s[i] = minus_infinity();
  }
}

// The same of scores whose column is below `low`.
template <class Config>
MK_DEVICE void attend_mask_below(float (&s)[Config::kScores], i32 low0, i32 low1) {
  const i32 first = static_cast<i32>(lane_index() % 4 * 2);
  low0 -= first;
  low1 -= first;
#pragma unroll
  for (u32 i = 0; i < Config::kScores; ++i) {
    const i32 col = static_cast<i32>(i / 4 * 8 + i % 2);
    if (col < (i % 4 < 2 ? low0 : low1)) s[i] = minus_infinity();
  }
}

// From scores to weights, in place; `shrink` is the factor on results and sums so far. Rows of which nothing is left have weights of zero.
template <class Config, bool kFirst>
MK_DEVICE void attend_softmax(float (&s)[Config::kScores], SoftmaxState& state, float (&shrink)[2]) {
  const float scale = __uint_as_float(Config::kExponentBits) * kLog2E;
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    // Chains that do not wait for each other.
    float most = kFirst ? s[2 * r] : state.most[r], other = s[2 * r + 1];
#pragma unroll
    for (u32 i = 0; i < Config::kScores; i += 4) {
      most = fmaxf(most, s[i + 2 * r]);
      other = fmaxf(other, s[i + 2 * r + 1]);
    }
    most = fmaxf(most, other);
    most = row_max(most);
    const float base = most == minus_infinity() ? 0.0f : most * scale;
    if constexpr (!kFirst) shrink[r] = exp2_approx(state.most[r] * scale - base);
    state.most[r] = most;
    float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
    for (u32 i = 0; i < Config::kScores; i += 4) {
      s[i + 2 * r] = exp2_approx(s[i + 2 * r] * scale - base);
      s[i + 2 * r + 1] = exp2_approx(s[i + 2 * r + 1] * scale - base);
      sum0 += s[i + 2 * r];
      sum1 += s[i + 2 * r + 1];
    }
    state.sum[r] = kFirst ? sum0 + sum1 : state.sum[r] * shrink[r] + (sum0 + sum1);
  }
}

// Weights as the left operand of 16 keys each: the registers of a product are those of an operand.
template <class Config>
MK_DEVICE void attend_pack(const float (&s)[Config::kScores], u32 (&p)[Config::kWeights]) {
#pragma unroll
  for (u32 i = 0; i < Config::kWeights; ++i) p[i] = pack2<Config::kDtype>(s[2 * i], s[2 * i + 1]);
}

template <class Config>
MK_DEVICE void attend_shrink(float (&o)[Config::kResults], const float (&shrink)[2]) {
#pragma unroll
  for (u32 i = 0; i < Config::kResults; ++i) o[i] *= shrink[i % 4 / 2];
}
