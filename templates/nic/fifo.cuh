// What goes between nodes: commands to this rank's host, and words that hosts raise.
//
// The fifo lies in pinned memory of the host. One lane of the grid writes it, so that places need no agreement and nothing that is given up leaves
// a hole; the number of the next command outlives the launch. The host's half, and the order that both rely on, is `mk-runtime/src/proxy/ring.rs`.

// Between two looks at a word that a host raises.
constexpr u32 kNetNapNs = 200;

// A send's command but for what all of a launch have in common, and its place in the plan.
struct NetTask {
  u32 task;  // linear index in the role
  u32 family;
  u32 kind;
  u64 from, to;  // bytes in the range of either rank
  u32 bytes;
  u32 peer;
  u32 remote_word, local_word;  // or kNoWord
};

// The word of a post that the network makes.
template <u32 kEdge>
MK_DEVICE u32 net_word(u32 word) { return word; }

// The lane that writes the fifo.
struct NetIssuer {
  u32 next;   // commands written so far
  u32 taken;  // what was last seen of the host's count

  MK_DEVICE explicit NetIssuer(const Context& ctx)
      : next(ld_u32(&ctx.control()->issued)), taken(next - kFifo) {}
};

// Writes one command; waits, for a bounded time, while the fifo is full. Its last word, stored with release, is what the host looks for: the host sees
// the words before it, and all that this lane has acquired.
template <class Edges>
MK_DEVICE void net_issue(const Context& ctx, NetIssuer& issuer, const NetTask& task) {
  NetFifo* fifo = reinterpret_cast<NetFifo*>(ctx.header.fifo);
  if (issuer.next - issuer.taken >= kFifo && !ctx.aborted()) {
    const u32 expected = issuer.next - kFifo + 1;
    const u64 begin = globaltimer_ns();
#pragma unroll 1
    for (;;) {
      issuer.taken = ld_acquire<Scope::Sys>(&fifo->taken);
      if (reached(issuer.taken, expected)) break;
      nanosleep(kNetNapNs);
      if (ctx.aborted()) return;
      const u64 waited_ns = globaltimer_ns() - begin;
      u32 abort = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->abort);
      if (abort == 0) abort = heed_host_in_turn(ctx, begin + waited_ns);
      if (abort == 0 && waited_ns < ctx.header.wait_limit_ns) continue;
      give_up(ctx, Fault{abort != 0 ? FaultKind::PeerAborted : FaultKind::FifoFull, Edges::fifo, expected, issuer.taken, task.task,
                         abort != 0 ? abort - 1 : task.peer, waited_ns, 0});
      break;
    }
  }
  if (ctx.aborted()) return;
  u32* out = reinterpret_cast<u32*>(ctx.header.fifo + sizeof(NetFifo) + (issuer.next % kFifo) * sizeof(NetCommand));
  const u32 lane = task.remote_word == kNoWord ? 0 : task.remote_word % kLanes;
  st_vec16(out, Vec16{{static_cast<u32>(task.from), static_cast<u32>(task.from >> 32), static_cast<u32>(task.to), static_cast<u32>(task.to >> 32)}});
  st_vec16(out + 4, Vec16{{task.bytes, task.peer, lane, ctx.header.instance}});
  st_vec16(out + 8, Vec16{{ctx.epoch(), task.remote_word, task.local_word, ctx.header.launch_hash}});
  st_u32x2(out + 12, task.kind, Edges::fifo);
  issuer.next += 1;
  st_release_sys(out + 15, issuer.next);
}

// The loop of the issuer. After an abort nothing is written, and the count of what was stays for the next kernel.
template <class Edges, class Hooks>
MK_DEVICE void net_issuer(const Context& ctx, const Hooks& hooks, NetIssuer& issuer) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    NetTask task = hooks.decode(t);
    chaos_delay(ctx, Agent::Copier, t);
    hooks.before_send(ctx, task);
    net_issue<Edges>(ctx, issuer, task);
  }
  st_u32(&ctx.control()->issued, issuer.next);
}

// A wait for a word that a host raises.
template <u32 kEdge, Reader kReader>
MK_DEVICE bool wait_net(const Context& ctx, u32 word, u32 expected, WaitSite site) {
  const bool ok = wait_word<kEdge, Scope::Sys, false, kNetNapNs>(ctx, ctx.net_word(word), expected, site);
  if constexpr (kReader == Reader::Async) fence_proxy_async_global();
  return ok;
}

// Waits until another node has entered this launch, by the word that stands for it, and compares the hash that came before the word from the rank of
// the same place there. A thread asks once for each: see `wait_entered`.
template <u32 kEdge, Reader kReader>
MK_DEVICE bool wait_node(const Context& ctx, u32 node, u32 tile) {
  const u32 peer = ctx.rail_rank(node);
  if ((ctx.seen >> peer & 1) != 0) {
    if constexpr (kReader == Reader::Async) fence_proxy_async_global();
    return !ctx.aborted();
  }
  const bool ok = wait_word<kEdge, Scope::Sys, true, kNetNapNs>(ctx, ctx.net_word(kEnteredNode + node), ctx.epoch(), WaitSite{tile, peer});
  if constexpr (kReader == Reader::Async) fence_proxy_async_global();
  if (!ok) return false;
  const u32 slot = (ctx.epoch() & 1) * ctx.header.world + peer;
  const u32 theirs = ld_relaxed_sys(reinterpret_cast<const u32*>(ctx.header.net + kNetHashes) + slot);
  if (theirs == ctx.header.launch_hash) {
    ctx.seen |= u64{1} << peer;
    return true;
  }
  give_up(ctx, Fault{FaultKind::PlanMismatch, kEdge, ctx.header.launch_hash, theirs, tile, peer, 0, kEnteredNode + node});
  return false;
}

// Tasks that only wait and post: words of hosts for those of the GPU.
struct SignalTask {
  u32 task;
  u32 family;
};

template <class Hooks>
MK_DEVICE void signal_lead(const Context& ctx, const Hooks& hooks) {
#pragma unroll 1
  for (u32 t = hooks.first(); t < hooks.end(); t += hooks.stride()) {
    const SignalTask task = hooks.decode(t);
    chaos_delay(ctx, Agent::Copier, t);
    hooks.before(ctx, task);
    hooks.after(ctx, task);
  }
}
