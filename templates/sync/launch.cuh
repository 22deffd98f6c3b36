// Entering and leaving a launch: the epoch, the in-flight count, the hand-shake with peers.
// First thing in the kernel, by the first warpgroup (the gate has half of one, and asks for nothing ahead). Initialise mbarriers between this and `launch_begin_sync`.
MK_DEVICE void launch_begin(const Context& ctx) {
  if (threadIdx.x == 0) {
    st_shared(ctx.state, 0);
    st_shared(ctx.fault(), 0);
  }
  if (threadIdx.x == 64) prefetch_l2(&ctx.control()->epoch[cta_index()]);
}

// The same in a kernel of which nothing stays: it has no epoch, and is not counted.
MK_DEVICE void launch_begin_uncounted(const Context& ctx) {
  if (threadIdx.x == 0) st_shared(ctx.state, 0);
}

// Counts this CTA in. One lane that has nothing better to do, after `launch_begin_sync`: the answer takes a round trip.
// The host's limit on the grid makes a count past the grid impossible for one launch.
//
// An abort word that is raised already is that of an earlier launch: the host refuses to launch such an instance, but a
// captured graph may be replayed by somebody who does not ask. Its words no longer say what the epoch says. What no kernel has heard from
// the host yet, CTA 0 hears.
MK_DEVICE void launch_count_in(const Context& ctx) {
  u32 abort = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->abort);
  if (abort == 0 && cta_index() == 0) abort = heed_host(ctx);
  const u32 inside = atom_add_gpu(&ctx.control()->active, 1);
  if (inside >= gridDim.x) {
    give_up(ctx, Fault{FaultKind::ConcurrentUse, 0, gridDim.x, inside + 1, 0, kNoPeer, 0, 0});
  } else if (abort != 0) {
    give_up(ctx, Fault{FaultKind::PeerAborted, 0, 0, 0, 0, abort - 1, 0, 0});
  }
}

// Orders the initialisation above before any agent.
MK_DEVICE void launch_begin_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// Last thing in the kernel, by every thread.
MK_DEVICE void launch_end(const Context& ctx) {
  __syncthreads();
  if (threadIdx.x == 0) {
    report_fault(ctx);
    red_add_gpu(&ctx.control()->epoch[cta_index()], 1);
    red_add_gpu(&ctx.control()->active, 0xffffffffu);
  }
}

// Lets the copies begin that engines make beside the kernel, where no gate has. By the warp that has waited for all entries; also where it
// has given that up, since their stream waits for this without a limit. Then it leaves them the epoch before, which raises no word.
MK_DEVICE void launch_engines(const Context& ctx) {
  __syncwarp();
  if (lane_index() == 0) {
    if (!ctx.aborted()) ctx.control()->launch = ctx.epoch();
    st_release_sys(&ctx.control()->engines, 1);
  }
}

// First thing in the gate behind `launch_begin_sync`, by every thread: nobody may be inside, neither a kernel of the launch before nor
// another gate, which would announce the same epoch twice. Until `launch_gate_end` the gate is.
MK_DEVICE void launch_gate_begin(const Context& ctx) {
  if (threadIdx.x == 0) {
    const u32 abort = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->abort);
    const u32 inside = atom_add_gpu(&ctx.control()->active, 1);
    if (inside != 0) {
      give_up(ctx, Fault{FaultKind::ConcurrentUse, 0, 1, inside + 1, 0, kNoPeer, 0, 0});
    } else if (abort != 0) {
      give_up(ctx, Fault{FaultKind::PeerAborted, 0, 0, 0, 0, abort - 1, 0, 0});
    }
  }
  __syncthreads();
}

// Last thing in the gate, by every thread: leaves the epoch to the copies behind it. A launch that was given up leaves the one
// before, which raises no word.
MK_DEVICE void launch_gate_end(const Context& ctx) {
  __syncthreads();
  if (threadIdx.x == 0) {
    report_fault(ctx);
    if (!ctx.aborted()) ctx.control()->launch = ctx.epoch();
    red_add_gpu(&ctx.control()->active, 0xffffffffu);
  }
}

// Tells every rank of the node (this one too) that this rank is in this launch: first the hash, then the count that covers it. Lane
// `lane` of `lanes`, of one CTA of the grid: a release by each takes no longer than one, in turn they hold up the launch.
template <u32 kEdge>
MK_DEVICE void post_entered(const Context& ctx, u32 lane, u32 lanes) {
  const u32 slot = (ctx.epoch() & 1) * MAX_RANKS + ctx.header.rank;
#pragma unroll 1
  for (u32 p = ctx.first_rank() + lane; p < ctx.end_rank(); p += lanes) {
    st_relaxed_sys(&ctx.sym_header(p)->launch_hash[slot], ctx.header.launch_hash);
    post_signal<kEdge, Scope::Sys>(ctx, ctx.signal(p, ctx.entered + ctx.header.rank), 1);
  }
}

// What some lane of this warp has seen, all have: no rank is asked for twice. By a whole warp; what a lane acquired is ordered for the
// others by the barrier that they wait at before they read.
MK_DEVICE void share_seen(const Context& ctx) {
  const u32 low = __reduce_or_sync(0xffffffffu, static_cast<u32>(ctx.seen));
  const u32 high = __reduce_or_sync(0xffffffffu, static_cast<u32>(ctx.seen >> 32));
  ctx.seen = static_cast<u64>(high) << 32 | low;
}

// Waits until `peer` has entered this launch with the same plan and per-launch values. `lag` 1 asks for the previous
// launch only (slots that alternate by parity), which has no hash to compare any more. A thread asks once for each peer:
// what it does later is ordered after that by program order. One that a lane of its warp has told (`share_seen`) is ordered from the
// next barrier of its team on.
template <u32 kEdge, Reader kReader>
MK_DEVICE bool wait_entered(const Context& ctx, u32 peer, u32 tile, u32 lag = 0) {
  if (lag == 0 && (ctx.seen >> peer & 1) != 0) {
    // What acquired may have been a wait for the other proxy.
    if constexpr (kReader == Reader::Async) fence_proxy_async_global();
    return !ctx.aborted();
  }
  const u32* word = ctx.signal(ctx.header.rank, ctx.entered + peer);
  const u32 expected = ctx.epoch() - lag;
  const bool ok = wait_word<kEdge, Scope::Sys, true>(ctx, word, expected, WaitSite{tile, peer});
  if constexpr (kReader == Reader::Async) fence_proxy_async_global();
  if (!ok) return false;
  if (lag != 0) return true;
  const u32 slot = (ctx.epoch() & 1) * MAX_RANKS + peer;
  const u32 theirs = ld_relaxed_sys(&ctx.sym_header(ctx.header.rank)->launch_hash[slot]);
  if (theirs == ctx.header.launch_hash) {
    ctx.seen |= u64{1} << peer;
    return true;
  }
  give_up(ctx, Fault{FaultKind::PlanMismatch, kEdge, ctx.header.launch_hash, theirs, tile, peer, 0,
                     static_cast<u32>(ctx.entered + peer)});
  return false;
}
