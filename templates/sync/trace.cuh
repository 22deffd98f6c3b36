// What each agent did, and when. Only in kernels that are emitted with tracing; the files before this one do not know
// of it.
//
// An agent appends records to a ring of its own, in a part of memory into which no other agent appends. Most agents are
// one lane; the lanes of a copier's warp, which share its waits and posts, take places from the agent's count in shared memory.
// A ring that is full overwrites its oldest records; the head says how many there were.

// Values of a record's kind; the host's TraceKind declares the same.
enum class TraceKind : u32 { Task = 1, Wait = 2, WaitBefore = 3, Post = 4, Enter = 5, Mark = 6, Cta = 7 };

// An agent's state; all but the count is for its first lane alone.
struct TraceAgent {
  u32 count;       // records made in this launch
  u32 open;        // a task has begun and not ended
  u32 begin;       // of the task, in cycles
  u32 what;        // family, as in a record
  u32 task;
  u32 stalled[2];  // cycles at internal edges since then
};
__shared__ TraceAgent trace_agents[kTraceAgents];

constexpr u32 kTracePartBytes = sizeof(TraceHead) + kTraceRecords * sizeof(TraceRecord);
// Warp 3 holds the CTA's own part; it computes nothing.
constexpr u32 kTraceFrame = 3;
static_assert(kTraceRecords > 0, "a ring holds something");

MK_DEVICE u32 trace_clock() {
  u32 cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}

// Warps of the first warpgroup are agents each, the other warpgroups as a whole.
MK_DEVICE u32 trace_agent() { return warp_index() < 4 ? warp_index() : 3 + warp_index() / 4; }
// Lane 0 of each warp that issues: this assumes that `elect_one` takes lane 0; PTX promises only that it is always the same lane.
// A third warpgroup that computes has no place.
MK_DEVICE bool trace_recorder() { return threadIdx.x % (threadIdx.x < 128 ? 32 : 128) == 0 && trace_agent() < kTraceAgents; }

MK_DEVICE u64 trace_part(const LaunchHeader& header, u32 agent) {
  return header.trace + static_cast<u64>(cta_index() * kTraceAgents + agent) * kTracePartBytes;
}

MK_DEVICE u32 trace_what(TraceKind kind, u32 family, u32 edge) {
  return static_cast<u32>(kind) | family << 8 | edge << 20;
}

// Appends a record. Both clocks are read side by side, so that the host can tell cycles from nanoseconds.
MK_DEVICE void trace_write(const LaunchHeader& header, u32 what, u32 task, u32 begin, u32 detail0, u32 detail1) {
  if (header.trace == 0) return;
  TraceAgent& agent = trace_agents[trace_agent()];
  const u32 place = atomicAdd(&agent.count, 1u) % kTraceRecords;
  const u64 at = trace_part(header, trace_agent()) + sizeof(TraceHead) + place * sizeof(TraceRecord);
  const u32 end = trace_clock();
  const u64 now = globaltimer_ns();
  st_vec16(reinterpret_cast<void*>(at), Vec16{{static_cast<u32>(now), static_cast<u32>(now >> 32), begin, end}});
  st_vec16(reinterpret_cast<void*>(at + 16), Vec16{{what, task, detail0, detail1}});
}

// Ends the task that this agent is in, if there is one.
MK_DEVICE void trace_task_end(const LaunchHeader& header) {
  if (!trace_recorder()) return;
  TraceAgent& agent = trace_agents[trace_agent()];
  if (agent.open == 0) return;
  agent.open = 0;
  trace_write(header, agent.what, agent.task, agent.begin, agent.stalled[0], agent.stalled[1]);
}

// Begins a task; the one before ends here if nothing ended it.
MK_DEVICE void trace_task(const LaunchHeader& header, u32 family, u32 task) {
  if (!trace_recorder()) return;
  trace_task_end(header);
  TraceAgent& agent = trace_agents[trace_agent()];
  agent.open = 1;
  agent.what = trace_what(TraceKind::Task, family, 0);
  agent.task = task;
  agent.stalled[0] = agent.stalled[1] = 0;
  agent.begin = trace_clock();
}

// A wait or a post of this lane that began at `begin` and is over.
MK_DEVICE void trace_signal(const LaunchHeader& header, TraceKind kind, u32 family, u32 edge, u32 task, const u32* word,
                            u32 begin) {
  const u64 offset = reinterpret_cast<u64>(word) - header.sym_base;
  trace_write(header, trace_what(kind, family, edge), task, begin, static_cast<u32>(offset),
              static_cast<u32>(offset >> 32));
}

// A place that stands for a word that hosts raise: behind the symmetric memory of all ranks, by rank.
MK_DEVICE const u32* trace_net(const LaunchHeader& header, u32 rank, u32 word) {
  return reinterpret_cast<const u32*>(header.sym_base + u64{header.world + rank} * header.sym_stride_bytes) + word;
}

// Whether a phase is complete, without waiting at all.
MK_DEVICE bool trace_test_wait(u32 bar, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  return done != 0;
}

// Generated code specialises `mbarrier_wait` with this: the same wait, timed. The clocks
// are read only where there is something to wait for.
template <u32 kSlot>
MK_DEVICE void trace_mbarrier_wait(u32 bar, u32 parity) {
  if (trace_test_wait(bar, parity)) return;
  const u32 begin = trace_clock();
  while (!mbarrier_try_wait(bar, parity)) {
  }
  if (trace_recorder()) trace_agents[trace_agent()].stalled[kSlot] += trace_clock() - begin;
}

// By the first warpgroup before `launch_begin_sync`.
MK_DEVICE void trace_begin() {
  if (threadIdx.x >= kTraceAgents) return;
  trace_agents[threadIdx.x] = TraceAgent{};
  if (threadIdx.x == kTraceFrame) trace_agents[threadIdx.x].begin = trace_clock();
}

// By the frame's lane once all agents run: a first reading of both clocks.
MK_DEVICE void trace_mark(const LaunchHeader& header) {
  const u32 now = trace_clock();
  trace_write(header, trace_what(TraceKind::Mark, 0, 0), 0, now, 0, 0);
}

// Called by all threads after `launch_end`, run by lane 0 of warp 3: the CTA's record, and the heads.
MK_DEVICE void trace_end(const Context& ctx) {
  const LaunchHeader& header = ctx.header;
  if (threadIdx.x != kTraceFrame * 32 || header.trace == 0) return;
  trace_write(header, trace_what(TraceKind::Cta, 0, 0), 0, trace_agents[kTraceFrame].begin, 0, 0);
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
#pragma unroll 1
  for (u32 a = 0; a < kTraceAgents; ++a) {
    const u64 head = trace_part(header, a);
    st_vec16(reinterpret_cast<void*>(head), Vec16{{trace_agents[a].count, ctx.epoch(), cta_index(), a}});
    st_vec16(reinterpret_cast<void*>(head + 16), Vec16{{kTraceRecords, sm, 0, 0}});
  }
}
