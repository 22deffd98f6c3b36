// Floats of 16 bits, two to a register, and of eight. Own conversions, because the vendor headers cost compile time.
// Two floats to one register, `lo` in the low half (PTX ISA, "cvt": the first source goes to the upper half).
template <Dtype kDtype>
MK_DEVICE u32 pack2(float lo, float hi) {
  u32 r;
  if constexpr (kDtype == Dtype::Bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  }
  return r;
}

MK_DEVICE float f16_to_float(u16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}

// The low and the high half of a packed pair, widened. A bf16 is the upper half of a float.
template <Dtype kDtype>
MK_DEVICE float unpack_lo(u32 pair) {
  if constexpr (kDtype == Dtype::Bf16) return __uint_as_float(pair << 16);
  return f16_to_float(static_cast<u16>(pair));
}
template <Dtype kDtype>
MK_DEVICE float unpack_hi(u32 pair) {
  if constexpr (kDtype == Dtype::Bf16) return __uint_as_float(pair & 0xffff0000u);
  return f16_to_float(static_cast<u16>(pair >> 16));
}

// Two floats to two bytes, `lo` in the low one. The instruction saturates; E5M2 has infinities, which numbers become
// from 61440 on, half a last place behind the largest one, and infinity stays.
template <Dtype kDtype>
MK_DEVICE u16 pack2_bytes(float lo, float hi) {
  u16 r;
  if constexpr (kDtype == Dtype::E4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    r += (fabsf(lo) >= 61440.0f ? 1 : 0) + (fabsf(hi) >= 61440.0f ? 256 : 0);
  }
  return r;
}

// The low byte, widened.
template <Dtype kDtype>
MK_DEVICE float widen_byte(u16 x) {
  // An E5M2 is the upper half of a binary16.
  u32 pair = static_cast<u32>(x) << 8;
  if constexpr (kDtype == Dtype::E4m3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(x));
  return f16_to_float(static_cast<u16>(pair));
}

template <Dtype kDtype>
MK_DEVICE u16 narrow(float x) {
  if constexpr (element_bytes(kDtype) == 1) return pack2_bytes<kDtype>(x, 0.0f);
  return static_cast<u16>(pack2<kDtype>(x, 0.0f));
}

template <Dtype kDtype>
MK_DEVICE float widen(u16 x) {
  if constexpr (element_bytes(kDtype) == 1) return widen_byte<kDtype>(x);
  return unpack_lo<kDtype>(x);
}

// To the type's nearest value and back.
template <Dtype kDtype>
MK_DEVICE float round_to(float x) { return widen<kDtype>(narrow<kDtype>(x)); }

// The factor of a block whose largest magnitude has these bits. A NaN's are above all others', so that it stays.
template <Dtype kNarrow>
MK_DEVICE float factor_of(u32 magnitude) {
  constexpr float kLargest = kNarrow == Dtype::E4m3 ? 448.0f : 57344.0f;
  return magnitude == 0 ? 1.0f : __fdiv_rn(__uint_as_float(magnitude), kLargest);
}

// Quotients of a block's elements by its factor, without a branch: the product with the reciprocal, corrected by what it leaves of the
// dividend, which is the nearest f32 (Markstein, "Computation of elementary functions on the IBM RISC System/6000", theorem 5). Small factors are
// scaled, with their dividends, to where reciprocals are finite.
struct Divisor {
  float scale, reciprocal, negated;
  MK_DEVICE explicit Divisor(float factor) {
    scale = factor < 0x1p-60f ? 0x1p64f : 1.0f;
    const float scaled = factor * scale;
    reciprocal = fminf(__frcp_rn(scaled), 0x1p127f);
    // By infinity: 0 of what is finite. By NaN: NaN.
    negated = scaled == __int_as_float(0x7f800000) ? 0.0f : -scaled;
  }
  MK_DEVICE float quotient(float x) const {
    const float dividend = x * scale, near = dividend * reciprocal;
    return copysignf(__fmaf_rn(__fmaf_rn(near, negated, dividend), reciprocal, near), x);
  }
};
