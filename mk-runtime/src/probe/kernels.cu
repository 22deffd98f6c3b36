// What measures a machine: copies by several means, reads, flags, launches of nothing. Follows the files of the device library that
// kernels.rs lists, so that what is measured is what generated kernels do. Whose memory an address is in is the host's business.
//
// Every wait for something is bounded: what gives up says so in the report, and no figure comes of it.
constexpr u64 kPatienceNs = 2'000'000'000;

// What the host reads afterwards; `Report` in kernels.rs is the same.
struct Report {
  u32 gave_up;
  u32 wrong;  // 32-bit words that are not as they should be
  u32 sum;    // of 32-bit words that were read or filled in, modulo 2^32
  u32 unused;
  u64 ns;
};
static_assert(sizeof(Report) == 24, "host and device disagree on Report");

// The plan's edges name the library's barriers; here there is no plan.
constexpr u32 kNoEdge = 0;

template <class Done>
MK_DEVICE bool in_time(const Done& done, Report* report) {
  for (u64 begin = 0;;) {
    for (u32 poll = 0; poll < 64; ++poll) {
      if (done()) return true;
    }
    const u64 now = globaltimer_ns();
    if (begin == 0) begin = now;
    if (now - begin > kPatienceNs) {
      st_relaxed_sys(&report->gave_up, 1);
      return false;
    }
  }
}

// ---- a pattern, and whether it is there ----

// 1 to 16, so that bf16 adds up to 16 of them without rounding; `MAX_LAUNCHES` in mod.rs counts on it.
MK_DEVICE u32 pattern(u32 rank, u32 i) {
  u32 z = i * 0x9E3779B1u ^ (rank + 1) * 0x85EBCA77u;
  z ^= z >> 15;
  z *= 0x2C1B3C6Du;
  return 1 + (z >> 28);
}
// An integer up to 256 is a bf16 as it is: the upper half of a float.
MK_DEVICE u32 bf16_bits(u32 v) { return __float_as_uint(static_cast<float>(v)) >> 16; }
MK_DEVICE u32 pattern_word(u32 rank, u32 times, u32 i) {
  return bf16_bits(times * pattern(rank, 2 * i)) | bf16_bits(times * pattern(rank, 2 * i + 1)) << 16;
}

extern "C" __global__ void __launch_bounds__(256) probe_fill(u32* x, u32 words, u32 rank, Report* report) {
  u32 sum = 0;
  for (u32 i = blockIdx.x * 256 + threadIdx.x; i < words; i += gridDim.x * 256) sum += x[i] = pattern_word(rank, 1, i);
  red_add_gpu(&report->sum, sum);
}

// x is what `times` sums of the rank's pattern make.
extern "C" __global__ void __launch_bounds__(256) probe_check(const u32* x, u32 words, u32 rank, u32 times,
                                                              Report* report) {
  u32 wrong = 0;
  for (u32 i = blockIdx.x * 256 + threadIdx.x; i < words; i += gridDim.x * 256) {
    wrong += ld_u32(x + i) != pattern_word(rank, times, i);
  }
  if (wrong != 0) red_add_gpu(&report->wrong, wrong);
}

// ---- bulk copies ----

// Shared memory of a CTA in pieces on their way, and how much of it may be leaving. The same for each size of piece, so that sizes
// differ in nothing else. `BULK_SMEM_BYTES` in kernels.rs is `kBulkSmemBytes`.
constexpr u32 kRingBytes = 192 * 1024;
constexpr u32 kLeavingBytes = 64 * 1024;
constexpr u32 kMinPieceBytes = 2 * 1024;
constexpr u32 kBulkSmemBytes = kRingBytes + 2 * kRingBytes / kMinPieceBytes * kMbarrierBytes;
static_assert(kBulkSmemBytes == 198144, "host and device disagree on shared memory");

// PTX ISA, "cp.reduce.async.bulk": adds shared memory to global memory, element by element. A sum per element is relaxed at the scope
// of a GPU, which is enough for one writer.
MK_DEVICE void bulk_reduce_add_bf16(void* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

enum class Write { Copy, Add };

// Two lanes, as in comm/copy_bulk.cuh: one loads pieces, the other writes them. CTAs take pieces in turn. 64 threads.
template <u32 kPiece, Write kWrite>
MK_DEVICE void bulk(unsigned char* dst, const unsigned char* src, u64 bytes, Report* report) {
  constexpr u32 kStages = kRingBytes / kPiece;
  constexpr u32 kLag = kLeavingBytes / kPiece;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 base = smem_address(smem);
  const auto piece = [&](u32 stage) { return base + stage * kPiece; };
  const auto full = [&](u32 stage) { return base + kRingBytes + stage * kMbarrierBytes; };
  const auto empty = [&](u32 stage) { return full(kStages + stage); };
  if (threadIdx.x == 0) {
    for (u32 s = 0; s < 2 * kStages; ++s) mbarrier_init(full(s), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (lane_index() != 0) return;

  const u64 first = static_cast<u64>(blockIdx.x) * kPiece, step = static_cast<u64>(gridDim.x) * kPiece;
  RingCursor<kStages> ring;
  const auto wait = [&](u32 bar, u32 parity) {
    return in_time([&] { return mbarrier_try_wait(bar, parity); }, report);
  };
  if (warp_index() == 0) {
#pragma unroll 1
    for (u64 at = first; at < bytes; at += step) {
      if (!wait(empty(ring.stage), ring.phase ^ 1)) return;
      mbarrier_arrive_expect_tx<kNoEdge>(full(ring.stage), kPiece);
      bulk_load(piece(ring.stage), src + at, kPiece, full(ring.stage));
      ring.advance();
    }
  } else {
    RingCursor<kStages> reading;
    u32 leaving = 0;
#pragma unroll 1
    for (u64 at = first; at < bytes; at += step) {
      if (!wait(full(ring.stage), ring.phase)) return;
      if constexpr (kWrite == Write::Copy) {
        bulk_store(dst + at, piece(ring.stage), kPiece);
      } else {
        bulk_reduce_add_bf16(dst + at, piece(ring.stage), kPiece);
      }
      bulk_commit();
      ring.advance();
      if (leaving == kLag) {
        bulk_wait_read<kLag>();
        mbarrier_arrive<kNoEdge>(empty(reading.stage));
        reading.advance();
      } else {
        ++leaving;
      }
    }
    // The hardware's wait, which has no bound; nobody's step but its own is missing for it.
    bulk_wait_written<0>();
  }
}

#define MK_PROBE_BULK(KIB)                                                                                         \
  extern "C" __global__ void __launch_bounds__(64, 1)                                                              \
  probe_bulk_copy_##KIB(unsigned char* dst, const unsigned char* src, u64 bytes, Report* report) {                 \
    bulk<KIB * 1024, Write::Copy>(dst, src, bytes, report);                                                        \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(64, 1)                                                              \
  probe_bulk_add_##KIB(unsigned char* dst, const unsigned char* src, u64 bytes, Report* report) {                  \
    bulk<KIB * 1024, Write::Add>(dst, src, bytes, report);                                                         \
  }
MK_PROBE_BULK(2)
MK_PROBE_BULK(4)
MK_PROBE_BULK(8)
MK_PROBE_BULK(16)

// ---- loads and stores ----

// A CTA has 128 KiB of loads on their way, 8 vectors a thread. `LDST_BYTES` in kernels.rs is `kBlockBytes`.
constexpr u32 kThreads = 1024, kVectors = 8, kBlockBytes = kThreads * kVectors * sizeof(Vec16);
static_assert(kBlockBytes == 131072, "host and device disagree on blocks");

MK_DEVICE void ld_block(Vec16 (&v)[kVectors], const unsigned char* src) {
#pragma unroll
  for (u32 j = 0; j < kVectors; ++j) v[j] = ld_vec16(src + (j * kThreads + threadIdx.x) * sizeof(Vec16));
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) probe_ldst_copy(unsigned char* dst, const unsigned char* src,
                                                                          u64 bytes) {
  const u64 step = static_cast<u64>(gridDim.x) * kBlockBytes;
#pragma unroll 1
  for (u64 at = static_cast<u64>(blockIdx.x) * kBlockBytes; at < bytes; at += step) {
    Vec16 v[kVectors];
    ld_block(v, src + at);
#pragma unroll
    for (u32 j = 0; j < kVectors; ++j) st_vec16(dst + at + (j * kThreads + threadIdx.x) * sizeof(Vec16), v[j]);
  }
}

// Reads only; the sum shows that it did.
extern "C" __global__ void __launch_bounds__(kThreads, 1) probe_read(const unsigned char* src, u64 bytes,
                                                                     Report* report) {
  const u64 step = static_cast<u64>(gridDim.x) * kBlockBytes;
  u32 sum = 0;
#pragma unroll 1
  for (u64 at = static_cast<u64>(blockIdx.x) * kBlockBytes; at < bytes; at += step) {
    Vec16 v[kVectors];
    ld_block(v, src + at);
#pragma unroll
    for (u32 j = 0; j < kVectors; ++j) sum += v[j].x[0] + v[j].x[1] + v[j].x[2] + v[j].x[3];
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (lane_index() == 0) red_add_gpu(&report->sum, sum);
}

// ---- flags ----

// Two CTAs release words to each other in turn, as posts of generated kernels do (`red.release`), and each acquires its own (`ld.acquire`;
// PTX ISA, "Memory Consistency Model"). CTA b of the launch plays side `side + b`; side 0 begins, and takes the time of `trips` trips
// there and back after some that do not count.
template <Scope kScope>
MK_DEVICE void ping(u32* word0, u32* word1, u32 side, u32 trips, Report* report) {
  constexpr u32 kUncounted = 32;
  const bool begins = side + blockIdx.x == 0;
  u32* mine = begins ? word0 : word1;
  u32* theirs = begins ? word1 : word0;
  u64 begin = 0;
  for (u32 i = 1; i <= kUncounted + trips; ++i) {
    if (i == kUncounted + 1) begin = globaltimer_ns();
    if (begins) red_release_add<kScope>(theirs, 1);
    if (!in_time([&] { return ld_acquire<kScope>(mine) == i; }, report)) return;
    if (!begins) red_release_add<kScope>(theirs, 1);
  }
  if (begins) report->ns = globaltimer_ns() - begin;
}

extern "C" __global__ void __launch_bounds__(1) probe_ping_gpu(u32* word0, u32* word1, u32 side, u32 trips,
                                                               Report* report) {
  ping<Scope::Gpu>(word0, word1, side, trips, report);
}
extern "C" __global__ void __launch_bounds__(1) probe_ping_sys(u32* word0, u32* word1, u32 side, u32 trips,
                                                               Report* report) {
  ping<Scope::Sys>(word0, word1, side, trips, report);
}

extern "C" __global__ void probe_nothing() {}
