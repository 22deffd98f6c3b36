// What all litmus kernels share: parameters, shared memory, the payload's pattern, random delays, the tally. The
// numbers kTurns, kPairs, ... and class_bytes() are printed by the host ahead of this text.
struct Params {
  TensorMap maps[kMaps];
  LaunchHeader header;
  u64 tensors[2];  // the tally; the fault records, where there are some
};

// Edge ids of a plan; these kernels have none.
constexpr u32 kFullEdge = 1, kFreeEdge = 2, kEntryEdge = 3, kInside = 0;

// Two pieces of a CTA, with the barriers of a ring: `full` from who fills a piece, `free` from who has emptied it.
struct Smem {
  u32 base;

  MK_DEVICE u32 piece(u32 stage) const { return base + stage * kSlotBytes; }
  MK_DEVICE u32 ready(u32 stage) const { return base + kStages * kSlotBytes + stage * kMbarrierBytes; }
  MK_DEVICE u32 full(u32 stage) const { return ready(kStages + stage); }
  MK_DEVICE u32 free(u32 stage) const { return ready(2 * kStages + stage); }
  MK_DEVICE u32 state() const { return ready(3 * kStages); }

  MK_DEVICE void init_barriers(u32 full_arrivals, u32 free_arrivals) const {
    for (u32 s = 0; s < kStages; ++s) {
      mbarrier_init(ready(s), kWorkerWarps);
      mbarrier_init(full(s), full_arrivals);
      mbarrier_init(free(s), free_arrivals);
    }
    fence_mbarrier_init();
  }
};

// Word `j` of what `who` writes in a turn. Two turns differ in every word, and so do two senders.
MK_DEVICE u32 pattern(u32 who, u32 turn, u32 j) {
  return (turn * 0x9e3779b1u + who * 0x85ebca77u) ^ (j * 0xc2b2ae3du + 0x165667b1u);
}

struct Rng {
  u32 s;

  MK_DEVICE static Rng seeded(const Context& ctx) {
    u32 h = ctx.header.rank * 0x9e3779b9u ^ blockIdx.x * 0x85ebca6bu ^ threadIdx.x / 32 * 0xc2b2ae35u ^ ctx.epoch();
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    return Rng{(h ^ (h >> 15)) | 1};
  }
  MK_DEVICE u32 next() {
    s ^= s << 13;
    s ^= s >> 17;
    return s ^= s << 5;
  }
};

// Mostly nothing; else a spin of up to half a microsecond, a nap of up to two, or, rarely, a long sleep. The same for
// all lanes of a warp.
MK_DEVICE void delay(Rng& rng) {
  const u32 r = rng.next(), length = r >> 8;
  if (r % 256 == 0) {
    nanosleep(length % 16384);
  } else if (r % 8 == 1) {
    nanosleep(length % 1024);
  } else if (r % 4 == 2) {
    const long long begin = clock64();
    while (clock64() - begin < length % 1024) {
    }
  }
}

// Written by all CTAs of a rank, read by the host as 32-bit words.
struct Tally {
  u64 turns;
  u64 wrong;
  u32 claimed;  // the rest describes the first wrong word
  u32 who, turn, word, seen, expected;
  u32 unused[6];
};
static_assert(sizeof(Tally) == 4 * kTallyWords, "host and device disagree on Tally");

// One thread's share of it.
struct Count {
  Tally* tally;
  u32 turns = 0, wrong = 0;

  MK_DEVICE explicit Count(const Params& p) : tally(reinterpret_cast<Tally*>(p.tensors[0])) {}

  MK_DEVICE void check(u32 who, u32 turn, u32 word, u32 seen) {
    const u32 expected = pattern(who, turn, word);
    if (seen == expected || wrong++ != 0 || atomicCAS(&tally->claimed, 0u, 1u) != 0) return;
    tally->who = who;
    tally->turn = turn;
    tally->word = word;
    tally->seen = seen;
    tally->expected = expected;
  }
  MK_DEVICE void add() const {
    if (turns != 0) atomicAdd(&tally->turns, static_cast<u64>(turns));
    if (wrong != 0) atomicAdd(&tally->wrong, static_cast<u64>(wrong));
  }
};

// ---- what only broken variants use ----

// As wait_word, with a relaxed load: no acquire.
MK_DEVICE bool wait_relaxed(const Context& ctx, const u32* word, u32 expected, u32 turn, u64 limit_ns) {
  if (ctx.aborted()) return false;
  const u64 begin = globaltimer_ns();
  u32 seen;
#pragma unroll 1
  for (u32 polls = 1; !reached(seen = ld_relaxed_sys(word), expected); ++polls) {
    if (polls % kPollsPerCheck != 0) continue;
    const u32 abort = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->abort);
    const u64 waited_ns = globaltimer_ns() - begin;
    if (abort == 0 && waited_ns < limit_ns) continue;
    give_up(ctx, Fault{abort != 0 ? FaultKind::PeerAborted : FaultKind::WaitTimeout, kFullEdge, expected, seen, turn,
                       abort != 0 ? abort - 1 : kNoPeer, waited_ns, 0});
    return false;
  }
  return true;
}
