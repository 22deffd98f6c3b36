// 16-bit floats, two to a register. Own conversions, because the vendor headers cost compile time.
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

template <Dtype kDtype>
MK_DEVICE u16 narrow(float x) { return static_cast<u16>(pack2<kDtype>(x, 0.0f)); }

template <Dtype kDtype>
MK_DEVICE float widen(u16 x) { return unpack_lo<kDtype>(x); }

// To the type's nearest value and back.
template <Dtype kDtype>
MK_DEVICE float round_to(float x) { return widen<kDtype>(narrow<kDtype>(x)); }
