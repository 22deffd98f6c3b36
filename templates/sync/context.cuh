// What every agent of a CTA shares: the launch header, the abort flag, and this launch's epoch where an agent has read it.
// One CTA's mutable state, in shared memory. An agent that gives up sets `aborted` before the mbarrier arrival that
// lets the next agent go on, so that whoever works on the tile after it sees the flag.
struct alignas(16) CtaState {
  u32 aborted;  // first: Context addresses it by the struct
  u32 taken[2];  // by each worker of a dynamic schedule: the task that it is at
  u32 gave_up;   // whether an agent did, whose fault stands behind this
  u32 fault[12];
};

// In place of the first word of the entries: no rank touches another's memory, and none announces itself.
constexpr u64 kNoEntry = ~0ull;

// In place of what has not been read: a wait for such an epoch, times any count below 512, is one that is given up.
constexpr u32 kNotRead = (1u << 22) - 1;

// Cheap to copy; `header` stays in the kernel's parameter bank.
struct Context {
  const LaunchHeader& header;
  u32 state;  // shared address of the CtaState
  u32 past;  // launches before this one, or kNotRead
  u64 entered;  // kNoEntry, or the first of `world` signal words: word r counts the launches that rank r has entered
  mutable u64 seen = 0;  // bit r: this thread has seen rank r in this launch, with the same plan

  MK_DEVICE bool aborted() const { return ld_shared(state) != 0; }
  MK_DEVICE void set_aborted() const { st_shared(state, 1); }
  // Shared address of `CtaState::gave_up`.
  MK_DEVICE u32 fault() const { return state + 12; }
  // Shared address of `CtaState::taken`.
  MK_DEVICE u32 taken(u32 worker) const { return state + 4 + 4 * worker; }

  // Symmetric memory of a rank, as mapped on this GPU.
  MK_DEVICE u64 sym(u32 rank) const { return header.sym_base + rank * header.sym_stride_bytes; }
  // Ranks whose memory is mapped: all, or those of the own node.
  MK_DEVICE u32 first_rank() const { return kNodes == 1 ? 0 : header.rank / kLocal * kLocal; }
  MK_DEVICE u32 end_rank() const { return kNodes == 1 ? header.world : first_rank() + kLocal; }
  // The number of this rank among those that tell each other of their nodes' entry, and the rank of a number.
  MK_DEVICE u32 rail_place() const { return header.rank / kRailStride % kRail; }
  MK_DEVICE u32 rail_rank(u32 place) const { return header.rank + (place - rail_place()) * kRailStride; }
  // A word that hosts raise: once in a launch, to its epoch.
  MK_DEVICE u32* net_word(u32 word) const { return reinterpret_cast<u32*>(header.net) + word; }
  MK_DEVICE SymHeader* sym_header(u32 rank) const { return reinterpret_cast<SymHeader*>(sym(rank)); }
  MK_DEVICE ControlBlock* control() const { return reinterpret_cast<ControlBlock*>(header.control); }
  // Read once, when an agent begins that waits, posts or may give up; not by a loader that only loads, since the answer comes from
  // memory, and a CTA's first tile would stand behind it.
  MK_DEVICE u32 read_past() const { return ld_u32(&control()->epoch[cta_index()]); }
  // This launch's epoch, the first is 1.
  MK_DEVICE u32 epoch() const { return past + 1; }
  // A signal word: `word` counts u32s from the start of the rank's symmetric memory.
  MK_DEVICE u32* signal(u32 rank, u64 word) const { return reinterpret_cast<u32*>(sym(rank)) + word; }
};
