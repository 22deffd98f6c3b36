// Waiting for a signal word, for a bounded time. One lane waits; the CTA's mbarriers carry the news to the others.
// Which proxy reads what the wait protects. Async (TMA) needs a proxy fence between the acquire and the issue.
enum class Reader : u32 { Generic, Async };

// Polls between two looks at the abort word and the clock: a poll costs about as much as either.
constexpr u32 kPollsPerCheck = 64;
// Such looks between two at what the host says, each of which is a trip over PCIe.
constexpr u32 kChecksPerHostCheck = 16;

// Where a wait stands in the plan, for the fault record.
struct WaitSite {
  u32 tile;
  u32 peer = kNoPeer;
};

MK_DEVICE bool reached(u32 seen, u32 expected) { return static_cast<i32>(seen - expected) >= 0; }

// Polls until `word` reaches `expected`, counting modulo 2^32. False: this CTA is aborted, and has been told.
//
// Two limits. While some peer has not entered this launch (compiling, say), only `entry_limit_ns` applies, and the fault
// names that peer; `wait_limit_ns` counts from the moment all have, other nodes included. A wait for a peer's entry itself sets `kEntry`. Words that
// hosts raise are looked at every `kNapNs` nanoseconds: looks go over PCIe.
template <u32 kEdge, Scope kScope, bool kEntry, u32 kNapNs = 0>
MK_DEVICE bool wait_word(const Context& ctx, const u32* word, u32 expected, WaitSite site) {
  if (ctx.aborted()) return false;
  u32 seen = ld_acquire<kScope>(word);
  if (reached(seen, expected)) return true;
  const u32 rank = ctx.header.rank;
  const u64 begin = globaltimer_ns();
  u64 armed = begin;
  // Peers below have been seen in this launch.
  u32 entered = ctx.entered == kNoEntry ? ctx.end_rank() : ctx.first_rank();
  [[maybe_unused]] u32 nodes = kEntry ? kRail : 0;
#pragma unroll 1
  for (u32 polls = 1;; ++polls) {
    seen = ld_acquire<kScope>(word);
    if (reached(seen, expected)) return true;
    if constexpr (kNapNs != 0) nanosleep(kNapNs);
    if (polls % kPollsPerCheck != 0) continue;
    if (ctx.aborted()) return false;
    const u64 now = globaltimer_ns();
    while (!kEntry && entered < ctx.end_rank() &&
           reached(ld_relaxed_sys(ctx.signal(rank, ctx.entered + entered)), ctx.epoch())) {
      ++entered;
      armed = now;
    }
    bool entry = kEntry || entered < ctx.end_rank();
    u32 abort = ld_relaxed_sys(&ctx.sym_header(rank)->abort);
    const bool looks = polls / kPollsPerCheck % kChecksPerHostCheck == 0;
    if (abort == 0 && looks) abort = heed_host_in_turn(ctx, now);
    if constexpr (kRail > 1) {
      while (looks && nodes < kRail && (nodes == ctx.rail_place() || reached(ld_relaxed_sys(ctx.net_word(kEnteredNode + nodes)), ctx.epoch()))) {
        ++nodes;
        armed = now;
      }
      entry = entry || nodes < kRail;
    }
    const u64 waited_ns = now - (entry ? begin : armed);
    if (abort == 0 && waited_ns < (entry ? ctx.header.entry_limit_ns : ctx.header.wait_limit_ns)) continue;
    const u64 offset = reinterpret_cast<u64>(word) - (kNapNs != 0 ? ctx.header.net : ctx.sym(rank));
    const FaultKind expiry = entry ? FaultKind::EntryTimeout : FaultKind::WaitTimeout;
    const u32 late = kRail == 1 || entered < ctx.end_rank() ? entered : ctx.rail_rank(nodes);
    const u32 peer = kEntry || !entry ? site.peer : late;
    give_up(ctx, Fault{abort != 0 ? FaultKind::PeerAborted : expiry, kEdge, expected, seen, site.tile,
                       abort != 0 ? abort - 1 : peer, waited_ns, static_cast<u32>(offset / 4)});
    return false;
  }
}

// A wait of the plan. After true, loads of the reader's proxy in this thread see what the producers released.
template <u32 kEdge, Scope kScope, Reader kReader>
MK_DEVICE bool wait_signal(const Context& ctx, const u32* word, u32 expected, WaitSite site) {
  const bool ok = wait_word<kEdge, kScope, false>(ctx, word, expected, site);
  if constexpr (kReader == Reader::Async) fence_proxy_async_global();
  return ok;
}
