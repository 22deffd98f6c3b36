// Which rows experts have, and of which tokens, from the experts that tokens name; chunk by chunk of tokens. Ordinary loads and stores of whole
// warps. What a phase stores, all threads see in the next one. A list has, as u32: where the tokens of each expert begin in it, how many there
// are, the same for each part of the chunk, the tokens in the order of experts, and for each id where among its expert's tokens it is.
constexpr u32 kListParts = 8;

struct ListTask {
  u32 task;    // linear index in the role
  u32 family;
  u64 ids;     // experts of the chunk's tokens, i32 or i64 [tokens, slots]
  u64 list;
  u32 words;   // of an id: 1 or 2
  u32 tokens, slots;
  u32 experts;
  u32 room;    // tokens and slots that a list has room for
  u32 first;   // the chunk's first token in the world
};

struct WantedTask {
  u32 task;
  u32 family;
  u64 ids;     // experts of the chunk's tokens
  u64 wanted;  // 0 or 1 for each of them, and 0 behind them
  u32 words;   // of an id
  u32 tokens, slots;
  u32 own;     // experts of a rank
  u32 rank;
  u32 entries;
};

struct BasesTask {
  u32 task;
  u32 family;
  u64 lists;
  u64 counts;  // rows of the rank's experts
  u64 bases;   // where rows of each chunk begin, [chunks + 1, experts]
  u32 chunks, width;
  u32 experts, own;  // of the world, the most of a rank
  u32 rank;
  u32 rows, blocks;  // rows of a block, blocks of a rank
  u32 keep;    // rows of an expert at most; 0: all of them
};

struct SourcesTask {
  u32 task;
  u32 family;
  u64 blocks;  // group and rows of the task's first block
  u64 lists;
  u64 bases;
  u64 sources;  // tokens of the rows of the task's first block
  u32 chunks, width;
  u32 experts;
  u32 expert;  // the rank's first one
  u32 first, count;  // blocks
  u32 rows;    // of a block
};

struct PlacesTask {
  u32 task;
  u32 family;
  u64 ids;
  u64 list;
  u64 bases;
  u64 begins;  // where each expert's rows begin, behind all experts before it; 0 where nothing is dropped
  u64 places;  // rank and row of each slot
  u64 kept;    // of each slot, 1 or 0; or 0
  u32 words;   // of an id
  u32 tokens, slots;
  u32 experts, own;
  u32 room;
  u32 keep;
};

// Rows of so many that are kept.
MK_DEVICE u32 kept_rows(u32 rows, u32 keep) { return keep == 0 ? rows : min(rows, keep); }

MK_DEVICE u32 entry_of(u64 table, u32 i) { return ld_u32(reinterpret_cast<const void*>(table + u64{i} * 4)); }
MK_DEVICE void set_entry(u64 table, u32 i, u32 value) { st_u32(reinterpret_cast<void*>(table + u64{i} * 4), value); }

// An id of one or two words, narrowed where that is the same number; others are no expert, whatever their low word is.
MK_DEVICE u32 id_at(u64 ids, u32 words, u32 i) {
  const u32 low = entry_of(ids, i * words);
  return words == 1 || entry_of(ids, i * words + 1) == 0 ? low : ~0u;
}

// Lanes of the warp that have the same number, of so many bits.
MK_DEVICE u32 same_lanes(u32 value, u32 bits) {
  u32 lanes = 0xffffffffu;
#pragma unroll 1
  for (u32 bit = 0; bit < bits; ++bit) {
    const bool set = (value >> bit & 1) != 0;
    const u32 all = __ballot_sync(0xffffffffu, set);
    lanes &= set ? all : ~all;
  }
  return lanes;
}

// The sum over this lane and those before it.
MK_DEVICE u32 sum_to_lane(u32 value, u32 lane) {
#pragma unroll
  for (u32 apart = 1; apart < 32; apart *= 2) {
    const u32 before = __shfl_up_sync(0xffffffffu, value, apart);
    if (lane >= apart) value += before;
  }
  return value;
}

// The expert that an id names, or `experts` for none: past the end, or none that there is, or one that the token has named before. The latter
// two end the launch, and index nothing.
MK_DEVICE u32 checked_expert(const Context& ctx, const ListTask& work, u32 i, u32 end) {
  if (i >= end) return work.experts;
  const u32 expert = id_at(work.ids, work.words, i), token = i / work.slots;
  const bool outside = expert >= work.experts;
  bool twice = false;
  for (u32 j = token * work.slots; j < i; ++j) twice |= id_at(work.ids, work.words, j) == expert;
  if (!outside && !twice) return expert;
  const i32 high = static_cast<i32>(entry_of(work.ids, i * work.words + work.words - 1));
  const u32 low = entry_of(work.ids, i * work.words);
  const u64 id = u64{static_cast<u32>(work.words == 1 ? high >> 31 : high)} << 32 | low;
  give_up(ctx, Fault{outside ? FaultKind::ExpertOutside : FaultKind::ExpertTwice, 0, work.experts, low, work.first + token, kNoPeer, id, 0});
  return work.experts;
}

// Each of eight warps has its part of the ids: it counts those of each expert; one warp adds up; each puts its tokens where they belong.
MK_DEVICE void tabulate_phase(const Context& ctx, const ListTask& work, u32 phase, u32 thread, u32) {
  const u32 lane = thread % 32, part = thread / 32, n = work.tokens * work.slots;
  if (part >= kListParts) return;
  const u64 counts = work.list + u64{work.experts} * 4, parts = counts + u64{work.experts} * 4;
  const u64 sorted = parts + u64{work.experts} * (4 * kListParts), ranks = sorted + u64{work.room} * 4;
  if (phase == 1) {
    if (part != 0) return;
    u32 before = 0;
#pragma unroll 1
    for (u32 from = 0; from < work.experts; from += 32) {
      const u32 expert = from + lane;
      u32 of_part[kListParts], total = 0;
#pragma unroll
      for (u32 p = 0; p < kListParts; ++p) {
        of_part[p] = expert < work.experts ? entry_of(parts, p * work.experts + expert) : 0;
        total += of_part[p];
      }
      const u32 end = before + sum_to_lane(total, lane);
      if (expert < work.experts) {
        u32 at = end - total;
        set_entry(work.list, expert, at);
        set_entry(counts, expert, total);
#pragma unroll
        for (u32 p = 0; p < kListParts; ++p) {
          set_entry(parts, p * work.experts + expert, at);
          at += of_part[p];
        }
      }
      before = __shfl_sync(0xffffffffu, end, 31);
    }
    return;
  }
  u32 bits = 0;
  while (work.experts >> bits != 0) ++bits;
  const u64 mine = parts + u64{part} * work.experts * 4;
  if (phase == 0) {
    for (u32 expert = lane; expert < work.experts; expert += 32) set_entry(mine, expert, 0);
    __syncwarp();
  }
  const u32 share = (n + 32 * kListParts - 1) / (32 * kListParts) * 32;
  const u32 begin = min(part * share, n), end = min(begin + share, n);
#pragma unroll 1
  for (u32 from = begin; from < end; from += 32) {
    const u32 i = from + lane;
    u32 expert = work.experts;
    if (phase == 0) expert = checked_expert(ctx, work, i, end);
    else if (i < end) expert = min(id_at(work.ids, work.words, i), work.experts);
    const u32 same = same_lanes(expert, bits), below = same & ((1u << lane) - 1);
    const bool there = expert < work.experts;
    const u32 at = there ? entry_of(mine, expert) : 0;
    __syncwarp();
    if (there && phase == 2) {
      const u32 place = at + __popc(below);
      set_entry(sorted, place, work.first + i / work.slots);
      set_entry(ranks, i, place - entry_of(work.list, expert));
    }
    if (there && below == 0) set_entry(mine, expert, at + __popc(same));
    __syncwarp();
  }
}

// Threads have tokens. Ids that name no expert are of no rank.
MK_DEVICE void tabulate_phase(const Context&, const WantedTask& work, u32, u32 thread, u32 threads) {
#pragma unroll 1
  for (u32 t = thread; t < work.entries; t += threads) {
    bool wanted = false;
    if (t < work.tokens) {
#pragma unroll 8
      for (u32 j = 0; j < work.slots; ++j) wanted |= id_at(work.ids, work.words, t * work.slots + j) / work.own == work.rank;
    }
    set_entry(work.wanted, t, wanted ? 1 : 0);
  }
}

// Threads have experts: rows of each; one warp has where they begin; and threads, where those of each chunk do.
MK_DEVICE void tabulate_phase(const Context& ctx, const BasesTask& work, u32 phase, u32 thread, u32 threads) {
  const u64 behind = work.bases + u64{work.chunks} * work.experts * 4;
  const auto count = [&](u32 chunk, u32 expert) { return entry_of(work.lists, chunk * work.width + work.experts + expert); };
  if (phase == 1) {
    const u32 lane = thread % 32;
    if (thread >= 32) return;
    u32 before = 0;
#pragma unroll 1
    for (u32 from = 0; from < work.experts; from += 32) {
      const u32 expert = from + lane;
      const u32 total = expert < work.experts ? entry_of(behind, expert) : 0;
      const u32 rounded = (total + work.rows - 1) / work.rows * work.rows;
      const u32 end = before + sum_to_lane(rounded, lane);
      if (expert < work.experts) set_entry(behind, expert, end - rounded);
      before = __shfl_sync(0xffffffffu, end, 31);
    }
    return;
  }
  if (phase == 2) {
    // The last rank may have fewer.
    for (u32 expert = work.rank * work.own + thread; expert < (work.rank + 1) * work.own; expert += threads) {
      if (expert >= work.experts) set_entry(work.counts, expert % work.own, 0);
    }
  }
#pragma unroll 1
  for (u32 expert = thread; expert < work.experts; expert += threads) {
    const u32 begin = phase == 0 ? 0 : entry_of(behind, expert) - entry_of(behind, expert / work.own * work.own);
    u32 at = begin;
#pragma unroll 1
    for (u32 from = 0; from < work.chunks; from += 16) {
      u32 n[16];
#pragma unroll
      for (u32 c = 0; c < 16; ++c) n[c] = from + c < work.chunks ? count(from + c, expert) : 0;
#pragma unroll
      for (u32 c = 0; c < 16; ++c) {
        if (phase == 2 && from + c < work.chunks) set_entry(work.bases, (from + c) * work.experts + expert, at);
        at += n[c];
      }
    }
    if (phase == 0) {
      set_entry(behind, expert, kept_rows(at, work.keep));
      continue;
    }
    if (expert / work.own == work.rank) set_entry(work.counts, expert % work.own, kept_rows(at - begin, work.keep));
    const u32 needed = (begin + kept_rows(at - begin, work.keep) + work.rows - 1) / work.rows;
    const bool last = expert % work.own == work.own - 1 || expert + 1 == work.experts;
    if (last && needed > work.blocks) {
      give_up(ctx, Fault{FaultKind::Capacity, 0, work.blocks, needed, work.task, kNoPeer, 0, 0});
    }
  }
}

// Each warp has blocks: their rows are a piece of those of one expert, of some chunks. Rows of nobody are of the first token.
MK_DEVICE void tabulate_phase(const Context&, const SourcesTask& work, u32, u32 thread, u32 threads) {
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 b = thread / 32; b < work.count; b += threads / 32) {
    const u32 expert = work.expert + entry_of(work.blocks, b * 2), rows = min(entry_of(work.blocks, b * 2 + 1), work.rows);
    const u32 begin = (work.first + b) * work.rows, end = begin + rows;
    const u64 out = work.sources + u64{b} * work.rows * 4;
    for (u32 row = rows + lane; row < work.rows; row += 32) set_entry(out, row, 0);
#pragma unroll 1
    for (u32 from = 0; from < work.chunks && rows > 0; from += 32) {
      const u32 chunk = from + lane;
      const bool there = chunk < work.chunks;
      const u32 at = there ? chunk * work.width + expert : 0;
      const u32 base = there ? entry_of(work.bases, chunk * work.experts + expert) : 0;
      const u32 count = there ? entry_of(work.lists, at + work.experts) : 0, list = there ? entry_of(work.lists, at) : 0;
      const u32 low = base > begin ? base : begin, high = min(base + count, end);
      const u32 skipped = list + low - base;
      u32 some = __ballot_sync(0xffffffffu, low < high);
#pragma unroll 1
      while (some != 0) {
        const u32 l = __ffs(some) - 1;
        some &= some - 1;
        const u32 to = __shfl_sync(0xffffffffu, low, l) - begin, n = __shfl_sync(0xffffffffu, high, l) - begin - to;
        const u32 first = (from + l) * work.width + (2 + kListParts) * work.experts + __shfl_sync(0xffffffffu, skipped, l);
        for (u32 i = lane; i < n; i += 32) set_entry(out, to + i, entry_of(work.lists, first + i));
      }
    }
  }
}

// Threads have ids, which a list was made of before.
MK_DEVICE void tabulate_phase(const Context&, const PlacesTask& work, u32, u32 thread, u32 threads) {
  const u64 ranks = work.list + u64{(2 + kListParts) * work.experts + work.room} * 4;
#pragma unroll 4
  for (u32 i = thread; i < work.tokens * work.slots; i += threads) {
    const u32 expert = id_at(work.ids, work.words, i);
    if (expert >= work.experts) continue;
    u32 row = entry_of(work.bases, expert) + entry_of(ranks, i);
    if (work.keep != 0) {
      // A dropped one has the place of its expert's first row, which is there.
      const u32 begin = entry_of(work.begins, expert) - entry_of(work.begins, expert / work.own * work.own);
      const bool kept = row - begin < work.keep;
      set_entry(work.kept, i, kept ? 1 : 0);
      row = kept ? row : begin;
    }
    st_u32x2(reinterpret_cast<void*>(work.places + u64{i} * 8), expert / work.own, row);
  }
}
