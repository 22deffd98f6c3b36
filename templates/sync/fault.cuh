// How a kernel gives up: one record for this rank, one abort word for everybody. Nothing returns from the middle. Agents only leave what they know
// in shared memory, since a wait stands in many places; one thread reports it when all have ended.
// Values of FaultRecord::kind; the host's FaultKind declares the same.
enum class FaultKind : u32 { WaitTimeout = 1, EntryTimeout = 2, PlanMismatch = 3, PeerAborted = 4, ConcurrentUse = 5, FifoFull = 6, NegativeRows = 7, Capacity = 8, ExpertOutside = 9, ExpertTwice = 10, Documents = 11 };

constexpr u32 kNoPeer = 0xffffffffu;

// What a wait knew when it gave up.
struct Fault {
  FaultKind kind;
  u32 edge;
  u32 expected;
  u32 seen;
  u32 tile;
  u32 peer;
  u64 waited_ns;
  u32 word;
};

// Writes this rank's record unless it has one. `state` goes last with release, so that the host reads a whole record.
MK_DEVICE void record_fault(const Context& ctx, const Fault& fault) {
  FaultRecord* record = reinterpret_cast<FaultRecord*>(ctx.header.fault);
  if (atom_cas_sys(&record->state, 0, 1) != 0) return;
  volatile FaultRecord* out = record;
  out->kind = static_cast<u32>(fault.kind);
  out->rank = ctx.header.rank;
  out->cta = cta_index();
  out->edge = fault.edge;
  out->epoch = ctx.read_past() + 1;
  out->expected = fault.expected;
  out->seen = fault.seen;
  out->tile = fault.tile;
  out->peer = fault.peer;
  out->waited_ns = fault.waited_ns;
  out->word = fault.word;
  st_release_sys(&record->state, 2);
}

// Tells every rank of the node, this one included: its other CTAs learn it from the same word. Hosts tell other nodes.
MK_DEVICE void raise_abort(const Context& ctx) {
  for (u32 p = ctx.first_rank(); p < ctx.end_rank(); ++p) st_relaxed_sys(&ctx.sym_header(p)->abort, 1 + ctx.header.rank);
}

// What the host tells this rank's kernels: 0, or 1 + the rank for which they are to give up. It lies in memory of the host, so that no
// stream has to get past what is queued, and a look takes a trip there. The abort word says it from then on: to other CTAs, and to
// launches behind this one.
MK_DEVICE u32 heed_host(const Context& ctx) {
  const u32 abort = ld_relaxed_sys(&reinterpret_cast<FaultRecord*>(ctx.header.fault)->abort);
  if (abort != 0) st_relaxed_sys(&ctx.sym_header(ctx.header.rank)->abort, abort);
  return abort;
}

// The same by one lane of the grid for every 2^16 ns: a grid of lanes that wait would fill PCIe with their looks, and hold up whatever
// else goes over it, copies that the wait is for among them.
MK_DEVICE u32 heed_host_in_turn(const Context& ctx, u64 now_ns) {
  u32* looked = &ctx.control()->looked;
  const u32 last = ld_relaxed_sys(looked), now = static_cast<u32>(now_ns >> 16);
  return last == now || atom_cas_gpu(looked, last, now) != last ? 0 : heed_host(ctx);
}

// Marks this CTA; the first fault in it counts.
MK_DEVICE void give_up(const Context& ctx, const Fault& fault) {
  if (atom_exch_shared(ctx.fault(), 1) == 0) {
    st_shared_vec16(ctx.fault() + 4, Vec16{{static_cast<u32>(fault.kind), fault.edge, fault.expected, fault.seen}});
    st_shared_vec16(ctx.fault() + 20, Vec16{{fault.tile, fault.peer, static_cast<u32>(fault.waited_ns), static_cast<u32>(fault.waited_ns >> 32)}});
    st_shared(ctx.fault() + 36, fault.word);
  }
  ctx.set_aborted();
}

// What an agent of this CTA gave up for, if one did. By one thread, behind all agents. The record precedes the abort word, so that no CTA of
// this rank can claim the record with "a peer aborted" first.
MK_DEVICE void report_fault(const Context& ctx) {
  if (ld_shared(ctx.fault()) == 0) return;
  const auto word = [&](u32 i) { return ld_shared(ctx.fault() + 4 + 4 * i); };
  const Fault fault{static_cast<FaultKind>(word(0)), word(1), word(2), word(3), word(4), word(5), static_cast<u64>(word(7)) << 32 | word(6), word(8)};
  record_fault(ctx, fault);
  if (fault.kind != FaultKind::PeerAborted) raise_abort(ctx);
}
