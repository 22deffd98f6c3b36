// Warpgroup matrix multiply (PTX ISA, "Asynchronous warpgroup level matrix instructions"): D += A * B with fp32
// accumulators, both operands in shared memory under a swizzle of 128 bytes, or of 64.
// How the operands lie in memory. A: [M, K] (K contiguous) or [K, M] (M contiguous); B: [N, K] or [K, N].
enum class ALayout : u32 { KMajor, MMajor };
enum class BLayout : u32 { KMajor, NMajor };

// An atom of a swizzle: 8 rows of as many bytes.
MK_DEVICE constexpr u32 sm90_atom_bytes(u32 row_bytes) { return 8 * row_bytes; }
constexpr u32 kWgmmaK = 16;

// Matrix descriptor (PTX ISA, "Matrix Descriptor Format"): bits 0-13 address, 16-29 leading-dimension offset,
// 32-45 stride offset, all in units of 16 bytes; bits 62-63 the swizzle, 1 for 128 bytes, 2 for 64.
template <u32 kRowBytes>
MK_DEVICE u64 sm90_descriptor(u32 address, u32 leading_bytes) {
  static_assert(kRowBytes == 128 || kRowBytes == 64, "a swizzle that operands have");
  return static_cast<u64>((address & 0x3ffffu) >> 4) | (static_cast<u64>(leading_bytes >> 4) << 16) |
         (static_cast<u64>(sm90_atom_bytes(kRowBytes) >> 4) << 32) | ((kRowBytes == 128 ? 1ull : 2ull) << 62);
}

// Rows of 64 K-elements: atoms of 8 rows follow each other; the leading offset is unused under the swizzle.
// Along K, 16 elements further is 32 bytes further, inside the atom.
MK_DEVICE u64 sm90_descriptor_k_major(u32 address) { return sm90_descriptor<128>(address, 16); }
constexpr u32 kKMajorStepBytes = kWgmmaK * kElemBytes;

// Panels of 64 or 32 M- or N-elements, `kRowBytes`, by `k_rows` rows of K: the next elements are a panel away, the next 8 K-rows an
// atom. 16 K-rows further is two atoms further.
template <u32 kRowBytes>
MK_DEVICE u64 sm90_descriptor_mn_major(u32 address, u32 k_rows) {
  return sm90_descriptor<kRowBytes>(address, k_rows * kRowBytes);
}
MK_DEVICE constexpr u32 sm90_mn_major_step_bytes(u32 row_bytes) { return kWgmmaK / 8 * sm90_atom_bytes(row_bytes); }

// Before the first wgmma of a sequence, and wherever accumulator registers were touched by other instructions.
MK_DEVICE void sm90_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MK_DEVICE void sm90_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 kPending>
MK_DEVICE void sm90_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across the asynchronous region.
template <u32 kCount>
MK_DEVICE void sm90_pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand texts, 16 registers each.
#define MK_REGS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MK_REGS_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MK_REGS_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MK_REGS_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MK_REGS_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define MK_REGS_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MK_REGS_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define MK_REGS_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MK_OPS_0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define MK_OPS_1 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MK_OPS_2 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define MK_OPS_3 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MK_OPS_4 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define MK_OPS_5 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define MK_OPS_6 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MK_OPS_7 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define MK_WGMMA_ONE(N, TYPE, REGS, DA, DB, SCALE, TRANS_A, TRANS_B, ...)                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " SCALE ", 0;\n"                                      \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, " DA ", " DB \
               ", p, 1, 1, " TRANS_A ", " TRANS_B ";\n}"                                              \
               : __VA_ARGS__                                                                           \
               : "l"(a), "l"(b), "r"(accumulate), "n"(kA == ALayout::MMajor), "n"(kB == BLayout::NMajor))

// `accumulate` = 0 overwrites D, so that accumulators need no clearing.
#define MK_WGMMA(N, REGS, DA, DB, SCALE, TRANS_A, TRANS_B, ...)                                               \
  template <Dtype kDtype, ALayout kA, BLayout kB>                                                              \
  MK_DEVICE void sm90_wgmma(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {                                 \
    if constexpr (kDtype == Dtype::Bf16) {                                                                     \
      MK_WGMMA_ONE(N, "bf16", REGS, DA, DB, SCALE, TRANS_A, TRANS_B, __VA_ARGS__);                             \
    } else {                                                                                                   \
      MK_WGMMA_ONE(N, "f16", REGS, DA, DB, SCALE, TRANS_A, TRANS_B, __VA_ARGS__);                              \
    }                                                                                                          \
  }

// The same of 8-bit operands, K-major both, of either type each.
#define MK_WGMMA_BYTES_ONE(N, TYPE_A, TYPE_B, REGS, DA, DB, SCALE, ...)                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " SCALE ", 0;\n"                                          \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE_A "." TYPE_B " {" REGS "}, " DA ", " DB ", p, 1, 1;\n}" \
               : __VA_ARGS__                                                                               \
               : "l"(a), "l"(b), "r"(accumulate))
#define MK_WGMMA_BYTES(N, REGS, DA, DB, SCALE, ...)                                                         \
  template <Dtype kA, Dtype kB>                                                                            \
  MK_DEVICE void sm90_wgmma_bytes(float (&d)[N / 2], u64 a, u64 b, u32 accumulate) {                       \
    if constexpr (kA == Dtype::E4m3 && kB == Dtype::E4m3) {                                                \
      MK_WGMMA_BYTES_ONE(N, "e4m3", "e4m3", REGS, DA, DB, SCALE, __VA_ARGS__);                             \
    } else if constexpr (kA == Dtype::E4m3) {                                                              \
      MK_WGMMA_BYTES_ONE(N, "e4m3", "e5m2", REGS, DA, DB, SCALE, __VA_ARGS__);                             \
    } else if constexpr (kB == Dtype::E4m3) {                                                              \
      MK_WGMMA_BYTES_ONE(N, "e5m2", "e4m3", REGS, DA, DB, SCALE, __VA_ARGS__);                             \
    } else {                                                                                               \
      MK_WGMMA_BYTES_ONE(N, "e5m2", "e5m2", REGS, DA, DB, SCALE, __VA_ARGS__);                             \
    }                                                                                                      \
  }

MK_WGMMA(32, MK_REGS_0, "%16", "%17", "%18", "%19", "%20",
         MK_OPS_0)
MK_WGMMA(64, MK_REGS_0 ", " MK_REGS_1, "%32", "%33", "%34", "%35", "%36",
         MK_OPS_0, MK_OPS_1)
MK_WGMMA(96, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2, "%48", "%49", "%50", "%51", "%52",
         MK_OPS_0, MK_OPS_1, MK_OPS_2)
MK_WGMMA(128, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3, "%64", "%65", "%66", "%67", "%68",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3)
MK_WGMMA(160, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4, "%80", "%81", "%82", "%83", "%84",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4)
MK_WGMMA(192, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5, "%96", "%97", "%98", "%99", "%100",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5)
MK_WGMMA(256, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6 ", " MK_REGS_7, "%128", "%129", "%130", "%131", "%132",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6, MK_OPS_7)
MK_WGMMA(224, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6, "%112", "%113", "%114", "%115", "%116",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6)
MK_WGMMA_BYTES(32, MK_REGS_0, "%16", "%17", "%18", MK_OPS_0)
MK_WGMMA_BYTES(64, MK_REGS_0 ", " MK_REGS_1, "%32", "%33", "%34", MK_OPS_0, MK_OPS_1)
MK_WGMMA_BYTES(96, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2, "%48", "%49", "%50", MK_OPS_0, MK_OPS_1, MK_OPS_2)
MK_WGMMA_BYTES(128, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3, "%64", "%65", "%66", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3)
MK_WGMMA_BYTES(160, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4, "%80", "%81", "%82", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4)
MK_WGMMA_BYTES(192, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5, "%96", "%97", "%98", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5)
MK_WGMMA_BYTES(256, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6 ", " MK_REGS_7, "%128", "%129", "%130", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6, MK_OPS_7)
#undef MK_WGMMA_BYTES
#undef MK_WGMMA_BYTES_ONE
// Half a group more.
#define MK_REGS_1_LOW "%16, %17, %18, %19, %20, %21, %22, %23"
#define MK_OPS_1_LOW "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define MK_REGS_2_LOW "%32, %33, %34, %35, %36, %37, %38, %39"
#define MK_OPS_2_LOW "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define MK_REGS_3_LOW "%48, %49, %50, %51, %52, %53, %54, %55"
#define MK_OPS_3_LOW "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define MK_REGS_4_LOW "%64, %65, %66, %67, %68, %69, %70, %71"
#define MK_OPS_4_LOW "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define MK_REGS_5_LOW "%80, %81, %82, %83, %84, %85, %86, %87"
#define MK_OPS_5_LOW "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define MK_REGS_6_LOW "%96, %97, %98, %99, %100, %101, %102, %103"
#define MK_OPS_6_LOW "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define MK_REGS_7_LOW "%112, %113, %114, %115, %116, %117, %118, %119"
#define MK_OPS_7_LOW "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
MK_WGMMA(48, MK_REGS_0 ", " MK_REGS_1_LOW, "%24", "%25", "%26", "%27", "%28",
         MK_OPS_0, MK_OPS_1_LOW)
MK_WGMMA(80, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2_LOW, "%40", "%41", "%42", "%43", "%44",
         MK_OPS_0, MK_OPS_1, MK_OPS_2_LOW)
MK_WGMMA(112, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3_LOW, "%56", "%57", "%58", "%59", "%60",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3_LOW)
MK_WGMMA(144, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4_LOW, "%72", "%73", "%74", "%75", "%76",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4_LOW)
MK_WGMMA(176, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5_LOW, "%88", "%89", "%90", "%91", "%92",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5_LOW)
MK_WGMMA(208, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6_LOW, "%104", "%105", "%106", "%107", "%108",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6_LOW)
MK_WGMMA(240, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6 ", " MK_REGS_7_LOW, "%120", "%121", "%122", "%123", "%124",
         MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6, MK_OPS_7_LOW)
#define MK_REGS_0_LOW "%0, %1, %2, %3, %4, %5, %6, %7"
#define MK_OPS_0_LOW "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
MK_WGMMA(16, MK_REGS_0_LOW, "%8", "%9", "%10", "%11", "%12", MK_OPS_0_LOW)
// D += A * B with A in registers, four of each thread, as `pack2` makes them of a product's accumulators: pairs of 16 columns. B: [K, N].
#define MK_WGMMA_A(N, TYPE, REGS, A0, A1, A2, A3, DB, SCALE, TRANS, ...)                                 \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " SCALE ", 0;\n"                                      \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " DB \
               ", p, 1, 1, " TRANS ";\n}"                                                             \
               : __VA_ARGS__                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kB == BLayout::NMajor))
#define MK_WGMMA_FROM_REGISTERS(N, REGS, A0, A1, A2, A3, DB, SCALE, TRANS, ...)                                 \
  template <Dtype kDtype, BLayout kB>                                                                          \
  MK_DEVICE void sm90_wgmma_from_registers(float (&d)[N / 2], const u32* a, u64 b, u32 accumulate) {           \
    if constexpr (kDtype == Dtype::Bf16) {                                                                     \
      MK_WGMMA_A(N, "bf16", REGS, A0, A1, A2, A3, DB, SCALE, TRANS, __VA_ARGS__);                              \
    } else {                                                                                                   \
      MK_WGMMA_A(N, "f16", REGS, A0, A1, A2, A3, DB, SCALE, TRANS, __VA_ARGS__);                               \
    }                                                                                                          \
  }

MK_WGMMA_FROM_REGISTERS(64, MK_REGS_0 ", " MK_REGS_1, "%32", "%33", "%34", "%35", "%36", "%37", "%38", MK_OPS_0, MK_OPS_1)
MK_WGMMA_FROM_REGISTERS(128, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3, "%64", "%65", "%66", "%67", "%68", "%69", "%70",
                        MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3)
MK_WGMMA_FROM_REGISTERS(192, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5, "%96", "%97", "%98", "%99",
                        "%100", "%101", "%102", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5)
MK_WGMMA_FROM_REGISTERS(256, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4 ", " MK_REGS_5 ", " MK_REGS_6 ", " MK_REGS_7, "%128",
                        "%129", "%130", "%131", "%132", "%133", "%134", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4, MK_OPS_5, MK_OPS_6,
                        MK_OPS_7)
MK_WGMMA_FROM_REGISTERS(16, MK_REGS_0_LOW, "%8", "%9", "%10", "%11", "%12", "%13", "%14", MK_OPS_0_LOW)
MK_WGMMA_FROM_REGISTERS(32, MK_REGS_0, "%16", "%17", "%18", "%19", "%20", "%21", "%22", MK_OPS_0)
MK_WGMMA_FROM_REGISTERS(48, MK_REGS_0 ", " MK_REGS_1_LOW, "%24", "%25", "%26", "%27", "%28", "%29", "%30", MK_OPS_0, MK_OPS_1_LOW)
MK_WGMMA_FROM_REGISTERS(80, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2_LOW, "%40", "%41", "%42", "%43", "%44", "%45", "%46", MK_OPS_0, MK_OPS_1, MK_OPS_2_LOW)
MK_WGMMA_FROM_REGISTERS(96, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2, "%48", "%49", "%50", "%51", "%52", "%53", "%54", MK_OPS_0, MK_OPS_1, MK_OPS_2)
MK_WGMMA_FROM_REGISTERS(112, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3_LOW, "%56", "%57", "%58", "%59", "%60", "%61", "%62", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3_LOW)
MK_WGMMA_FROM_REGISTERS(144, MK_REGS_0 ", " MK_REGS_1 ", " MK_REGS_2 ", " MK_REGS_3 ", " MK_REGS_4_LOW, "%72", "%73", "%74", "%75", "%76", "%77", "%78", MK_OPS_0, MK_OPS_1, MK_OPS_2, MK_OPS_3, MK_OPS_4_LOW)
#undef MK_REGS_0_LOW
#undef MK_OPS_0_LOW
#undef MK_REGS_1_LOW
#undef MK_OPS_1_LOW
#undef MK_REGS_2_LOW
#undef MK_OPS_2_LOW
#undef MK_REGS_3_LOW
#undef MK_OPS_3_LOW
#undef MK_REGS_4_LOW
#undef MK_OPS_4_LOW
#undef MK_REGS_5_LOW
#undef MK_OPS_5_LOW
#undef MK_REGS_6_LOW
#undef MK_OPS_6_LOW
#undef MK_REGS_7_LOW
#undef MK_OPS_7_LOW

#undef MK_WGMMA_FROM_REGISTERS
#undef MK_WGMMA_A
#undef MK_WGMMA
#undef MK_WGMMA_ONE
#undef MK_REGS_0
#undef MK_OPS_0
#undef MK_REGS_1
#undef MK_OPS_1
#undef MK_REGS_2
#undef MK_OPS_2
#undef MK_REGS_3
#undef MK_OPS_3
#undef MK_REGS_4
#undef MK_OPS_4
#undef MK_REGS_5
#undef MK_OPS_5
#undef MK_REGS_6
#undef MK_OPS_6
#undef MK_REGS_7
#undef MK_OPS_7
