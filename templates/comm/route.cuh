// Which rows experts have, and of which tokens, from the experts that tokens name; chunk by chunk of tokens. Ordinary loads and stores of whole
// warps. What a phase stores, all threads see in the next one. A list has, as u32: for each expert a bit for each token of the chunk that goes to
// it, sixteen to an entry; how many those are, for each expert; and the chunk's first token in the world.
constexpr u32 kEntryTokens = 16;
constexpr u32 kListEntries = 16;  // of an expert

struct ListTask {
  u32 task;    // linear index in the role
  u32 family;
  u64 ids;     // experts of the chunk's tokens, i32 or i64 [tokens, slots]
  u64 list;
  u32 words;   // of an id: 1 or 2
  u32 tokens, slots;  // tokens: 256 at most
  u32 experts;
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
  u64 entries; // group and rows of each block
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
  u64 kept;    // of each slot 1 if it has a row, else 0
  u32 words;   // of an id
  u32 tokens, slots;
  u32 experts, own;
  u32 keep;
};

// Places of the experts of a node.
struct NodePlacesTask : PlacesTask {
  u32 node, ranks;  // its first rank, and how many they are
};

struct DroppedTask {
  u32 task;
  u32 family;
  u64 lists;
  u64 bases;
  u64 dropped;  // rows of the rank's tokens that are not kept
  u32 chunks, width;
  u32 experts, own;  // of the world, the most of a rank
  u32 rank, ranks;
  u32 keep;
};

struct SlotsTask {
  u32 task;
  u32 family;
  u64 ids;      // experts of all tokens
  u64 blocks;   // group and rows of the task's first block
  u64 sources;  // tokens of the rows of the task's first block
  u64 slots;    // which slot of its token each of these rows is
  u32 words;    // of an id
  u32 tokens, per_token;
  u32 expert;   // the rank's first one
  u32 count;    // blocks
  u32 rows;     // of a block
};

// What crosses between nodes, of the tokens of a chunk.
struct CrossingTask {
  u32 task;
  u32 family;
  u64 ids;     // experts of the chunk's tokens
  u64 counts;  // of each node: tokens that it has an expert of, or 1
  u64 rows;    // of each node these tokens, and 0 behind them; or of each token its number among those of this node
  u32 words;   // of an id
  u32 tokens, slots;
  u32 own;     // experts of a node
  u32 nodes;
  u32 width;   // entries of rows, of a node
  u32 node;    // this one
};

struct LeavingTask : CrossingTask {};
struct ComingTask : CrossingTask {};

// Rows of so many that are kept.
MK_DEVICE u32 kept_rows(u32 rows, u32 keep) { return keep == 0 ? rows : min(rows, keep); }

MK_DEVICE u32 entry_of(u64 table, u32 i) { return ld_u32(reinterpret_cast<const void*>(table + u64{i} * 4)); }
MK_DEVICE void set_entry(u64 table, u32 i, u32 value) { st_u32(reinterpret_cast<void*>(table + u64{i} * 4), value); }

// A slot that goes to no expert: -1.
constexpr u32 kNoExpert = ~0u;

// An id of one or two words, narrowed where that is the same number; others are outside, whatever their low word is.
MK_DEVICE u32 id_at(u64 ids, u32 words, u32 i) {
  // Both in flight: a word that is the last one, too, is loaded twice.
  const u32 low = entry_of(ids, i * words), last = entry_of(ids, i * words + words - 1);
  const bool same = words == 1 || last == static_cast<u32>(static_cast<i32>(low) >> 31);
  return same ? low : kNoExpert - 1;
}

// How many tokens of a chunk go to an expert; `at` is where the chunk's list begins.
MK_DEVICE u32 count_of(u64 lists, u32 at, u32 experts, u32 expert) { return entry_of(lists, at + kListEntries * experts + expert); }

// The sum over this lane and those before it.
MK_DEVICE u32 sum_to_lane(u32 value, u32 lane) {
#pragma unroll
  for (u32 apart = 1; apart < 32; apart *= 2) {
    const u32 before = __shfl_up_sync(0xffffffffu, value, apart);
    if (lane >= apart) value += before;
  }
  return value;
}

// Ends the launch: the token's id at `i` is no expert, or one that it has named before.
MK_DEVICE void refuse_expert(const Context& ctx, const ListTask& work, u32 i) {
  const i32 high = static_cast<i32>(entry_of(work.ids, i * work.words + work.words - 1));
  const u32 low = entry_of(work.ids, i * work.words);
  const u64 id = u64{static_cast<u32>(work.words == 1 ? high >> 31 : high)} << 32 | low;
  const FaultKind kind = id_at(work.ids, work.words, i) < work.experts ? FaultKind::ExpertTwice : FaultKind::ExpertOutside;
  give_up(ctx, Fault{kind, 0, work.experts, low, work.first + i / work.slots, kNoPeer, id, 0});
}

// Slots of a token whose ids, and then whose bits, are in flight together.
constexpr u32 kListUnroll = 8;

// Threads have tokens, of which each sets its bits: an id is judged before it indexes anything, and a bit that is set already is a token's that
// names an expert twice, since no other thread has it. Then they have experts, and count.
MK_DEVICE void tabulate_phase(const Context& ctx, const ListTask& work, u32 phase, u32 thread, u32 threads) {
  const u32 entries = work.experts * kListEntries;
  if (phase == 0) {
    for (u32 i = thread * 4; i < entries; i += threads * 4) st_vec16(reinterpret_cast<void*>(work.list + u64{i} * 4), Vec16{});
    return;
  }
  if (phase == 1) {
#pragma unroll 1
    for (u32 t = thread; t < work.tokens; t += threads) {
#pragma unroll 1
      for (u32 from = 0; from < work.slots; from += kListUnroll) {
        const u32 first = t * work.slots + from, n = min(work.slots - from, kListUnroll);
        u32 expert[kListUnroll], before[kListUnroll];
#pragma unroll
        for (u32 j = 0; j < kListUnroll; ++j) expert[j] = j < n ? id_at(work.ids, work.words, first + j) : 0;
#pragma unroll
        for (u32 j = 0; j < kListUnroll; ++j) {
          const u32 entry = expert[j] * kListEntries + t / kEntryTokens;
          const bool there = j < n && expert[j] < work.experts;
          before[j] = there ? atom_or_gpu(reinterpret_cast<u32*>(work.list + u64{entry} * 4), 1u << t % kEntryTokens) : 0;
        }
        u32 wrong = 0;
#pragma unroll
        for (u32 j = 0; j < kListUnroll; ++j) {
          const bool outside = j < n && expert[j] >= work.experts && expert[j] != kNoExpert, twice = (before[j] >> t % kEntryTokens & 1) != 0;
          wrong |= outside || twice ? 1u << j : 0;
        }
        if (wrong != 0) refuse_expert(ctx, work, first + __ffs(wrong) - 1);
      }
    }
    return;
  }
  for (u32 expert = thread; expert < work.experts; expert += threads) {
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < kListEntries; i += 4) {
      const Vec16 v = ld_vec16(reinterpret_cast<const void*>(work.list + u64{expert * kListEntries + i} * 4));
#pragma unroll
      for (u32 x = 0; x < 4; ++x) count += __popc(v.x[x]);
    }
    set_entry(work.list, entries + expert, count);
  }
  if (thread == 0) set_entry(work.list, entries + work.experts, work.first);
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

// Warps have nodes, and lanes tokens.
template <bool kLeaving>
MK_DEVICE void tabulate_crossing(const CrossingTask& work, u32 thread, u32 threads) {
  const u32 lane = thread % 32;
#pragma unroll 1
  for (u32 node = thread / 32; node < work.nodes; node += threads / 32) {
    const u64 out = work.rows + (kLeaving ? u64{node} * work.width * 4 : 0);
    u32 before = 0;
#pragma unroll 1
    for (u32 from = 0; from < work.width; from += 32) {
      const u32 t = from + lane;
      bool goes = false;
      if (t < work.tokens) {
#pragma unroll 8
        for (u32 j = 0; j < work.slots; ++j) goes |= id_at(work.ids, work.words, t * work.slots + j) / work.own == node;
      }
      const u32 all = __ballot_sync(0xffffffffu, goes), at = before + __popc(all & ((1u << lane) - 1));
      if (kLeaving && goes) set_entry(out, at, t);
      if (!kLeaving && node == work.node && t < work.width) set_entry(out, t, goes ? at : 0);
      before += __popc(all);
    }
    for (u32 i = before + lane; kLeaving && i < work.width; i += 32) set_entry(out, i, 0);
    if (lane == 0) set_entry(work.counts, node, max(before, 1u));
  }
}

MK_DEVICE void tabulate_phase(const Context&, const LeavingTask& work, u32, u32 thread, u32 threads) {
  tabulate_crossing<true>(work, thread, threads);
}

MK_DEVICE void tabulate_phase(const Context&, const ComingTask& work, u32, u32 thread, u32 threads) {
  tabulate_crossing<false>(work, thread, threads);
}

// Threads have an expert, and some of the chunks: rows of those; one warp has where they begin, and rows of the rank's experts; and threads, where
// the rows of each chunk do. Then warps have blocks.
MK_DEVICE void tabulate_phase(const Context& ctx, const BasesTask& work, u32 phase, u32 thread, u32 threads) {
  constexpr u32 kMostParts = 8, kInFlight = 16;
  const u64 behind = work.bases + u64{work.chunks} * work.experts * 4;
  const u32 across = (work.experts + 31) / 32 * 32;
  const u32 parts = min(max(threads / across, 1u), kMostParts), share = (work.chunks + parts - 1) / parts;
  if (phase == 1) {
    const u32 lane = thread % 32;
    if (thread >= 32) return;
    u32 before = 0;
#pragma unroll 1
    for (u32 from = 0; from < work.experts; from += 32) {
      const u32 expert = from + lane;
      const bool there = expert < work.experts;
      u32 of_part[kMostParts], total = 0;
#pragma unroll
      for (u32 p = 0; p < kMostParts; ++p) {
        of_part[p] = there && p < parts && p * share < work.chunks ? entry_of(work.bases, p * share * work.experts + expert) : 0;
        total += of_part[p];
      }
      const u32 kept = kept_rows(total, work.keep), rounded = (kept + work.rows - 1) / work.rows * work.rows;
      const u32 end = before + sum_to_lane(rounded, lane);
      if (there) set_entry(behind, expert, end - rounded);
      before = __shfl_sync(0xffffffffu, end, 31);
      // Where the first expert of the same rank begins is a lane's of this round, or of one before.
      __syncwarp();
      const u32 first = there ? entry_of(behind, expert / work.own * work.own) : 0;
      u32 at = end - rounded - first;
#pragma unroll
      for (u32 p = 0; p < kMostParts; ++p) {
        if (there && p < parts && p * share < work.chunks) set_entry(work.bases, p * share * work.experts + expert, at);
        at += of_part[p];
      }
      if (there && expert / work.own == work.rank) set_entry(work.counts, expert % work.own, kept);
      const u32 needed = (end - first) / work.rows;
      const bool last = expert % work.own == work.own - 1 || expert + 1 == work.experts;
      if (there && last && needed > work.blocks) {
        give_up(ctx, Fault{FaultKind::Capacity, 0, work.blocks, needed, work.task, kNoPeer, 0, 0});
      }
    }
    // The last rank may have fewer.
    for (u32 expert = work.rank * work.own + lane; expert < (work.rank + 1) * work.own; expert += 32) {
      if (expert >= work.experts) set_entry(work.counts, expert % work.own, 0);
    }
    return;
  }
  if (phase == 2) {
    const BlocksTask of{work.task, work.family, work.counts, work.entries, work.own, work.blocks, work.rows};
    tabulate_blocks(ctx, of, thread, threads);
  }
  const u32 part = parts == 1 ? 0 : thread / across, stride = parts == 1 ? threads : across;
  if (part >= parts) return;
  const u32 begin = part * share, end = min(begin + share, work.chunks);
#pragma unroll 1
  for (u32 expert = parts == 1 ? thread : thread % across; expert < work.experts && begin < end; expert += stride) {
    u32 at = phase == 0 ? 0 : entry_of(work.bases, begin * work.experts + expert);
#pragma unroll 1
    for (u32 from = begin; from < end; from += kInFlight) {
      u32 n[kInFlight];
#pragma unroll
      for (u32 c = 0; c < kInFlight; ++c) n[c] = from + c < end ? count_of(work.lists, (from + c) * work.width, work.experts, expert) : 0;
#pragma unroll
      for (u32 c = 0; c < kInFlight; ++c) {
        if (phase == 2 && from + c < end) set_entry(work.bases, (from + c) * work.experts + expert, at);
        at += n[c];
      }
    }
    if (phase == 0) set_entry(work.bases, begin * work.experts + expert, at);
  }
}

// Chunks whose bits are in flight together, two to a load.
constexpr u32 kSourcesUnroll = 4;

// Each warp has blocks: their rows are a piece of those of one expert, of some chunks. Half of the lanes have the entries of a chunk, and the
// others those of another one. Rows of nobody are of the first token.
MK_DEVICE void tabulate_phase(const Context&, const SourcesTask& work, u32, u32 thread, u32 threads) {
  const u32 lane = thread % 32, entry = lane % kListEntries;
#pragma unroll 1
  for (u32 b = thread / 32; b < work.count; b += threads / 32) {
    const u32 expert = work.expert + entry_of(work.blocks, b * 2), rows = min(entry_of(work.blocks, b * 2 + 1), work.rows);
    const u32 begin = (work.first + b) * work.rows, end = begin + rows;
    const u64 out = work.sources + u64{b} * work.rows * 4;
    for (u32 row = rows + lane; row < work.rows; row += 32) set_entry(out, row, 0);
#pragma unroll 1
    for (u32 from = 0; from < work.chunks && rows > 0; from += 32) {
      const u32 chunk = from + lane, at = chunk * work.width;
      const bool there = chunk < work.chunks;
      const u32 base = there ? entry_of(work.bases, chunk * work.experts + expert) : 0;
      const u32 count = there ? count_of(work.lists, at, work.experts, expert) : 0;
      const u32 first = there ? entry_of(work.lists, at + (kListEntries + 1) * work.experts) : 0;
      u32 some = __ballot_sync(0xffffffffu, count > 0 && base < end && base + count > begin);
#pragma unroll 1
      while (some != 0) {
        u32 of[kSourcesUnroll], bits[kSourcesUnroll];
#pragma unroll
        for (u32 i = 0; i < kSourcesUnroll; ++i) {
          const u32 one = some;
          some &= some - 1;
          const u32 other = some;
          some &= some - 1;
          const u32 mine = lane < kListEntries ? one : other;
          of[i] = mine == 0 ? 0 : __ffs(mine) - 1;
          bits[i] = mine == 0 ? 0 : entry_of(work.lists, (from + of[i]) * work.width + expert * kListEntries + entry);
        }
#pragma unroll
        for (u32 i = 0; i < kSourcesUnroll; ++i) {
          const u32 n = __popc(bits[i]), sum = sum_to_lane(n, lane);
          // Of the lanes of the same chunk.
          const u32 of_first = __shfl_sync(0xffffffffu, sum, kListEntries - 1);
          u32 row = __shfl_sync(0xffffffffu, base, of[i]) + sum - n - (lane < kListEntries ? 0 : of_first);
          u32 token = __shfl_sync(0xffffffffu, first, of[i]) + entry * kEntryTokens - 1;
#pragma unroll 1
          for (u32 left = bits[i]; left != 0; ++row) {
            const u32 skipped = __ffs(left);
            token += skipped;
            left >>= skipped;
            if (row >= begin && row < end) set_entry(out, row - begin, token);
          }
        }
      }
    }
  }
}

// Threads have an expert of a chunk, of the rank's: rows of it behind those that the expert keeps.
MK_DEVICE void tabulate_phase(const Context&, const DroppedTask& work, u32 phase, u32 thread, u32 threads) {
  if (phase == 0) {
    if (thread == 0) set_entry(work.dropped, 0, 0);
    return;
  }
  const u32 each = work.chunks / work.ranks, first = work.rank * each;
  u32 dropped = 0;
#pragma unroll 4
  for (u32 i = thread; i < each * work.experts; i += threads) {
    const u32 chunk = first + i / work.experts, expert = i % work.experts, last = work.chunks * work.experts;
    const u32 rows = count_of(work.lists, chunk * work.width, work.experts, expert);
    const u32 begin = entry_of(work.bases, last + expert) - entry_of(work.bases, last + expert / work.own * work.own);
    const u32 end = entry_of(work.bases, chunk * work.experts + expert) + rows - begin;
    dropped += end > work.keep ? min(rows, end - work.keep) : 0;
  }
  dropped = sum_to_lane(dropped, thread % 32);
  if (thread % 32 == 31 && dropped != 0) red_add_gpu(reinterpret_cast<u32*>(work.dropped), dropped);
}

// Threads have rows, whose tokens name their expert in one slot. Rows of nobody are of the first one.
MK_DEVICE void tabulate_phase(const Context&, const SlotsTask& work, u32, u32 thread, u32 threads) {
#pragma unroll 1
  for (u32 i = thread; i < work.count * work.rows; i += threads) {
    const u32 b = i / work.rows, expert = work.expert + entry_of(work.blocks, b * 2), token = entry_of(work.sources, i);
    u32 slot = 0;
    if (i % work.rows < entry_of(work.blocks, b * 2 + 1) && token < work.tokens) {
#pragma unroll 8
      for (u32 j = 0; j < work.per_token; ++j) slot = id_at(work.ids, work.words, token * work.per_token + j) == expert ? j : slot;
    }
    set_entry(work.slots, i, slot);
  }
}

// Threads have ids, which a list was made of before.
// An expert of another node is none, and a slot of none has the node's first row.
template <bool kNode>
MK_DEVICE void tabulate_places(const PlacesTask& work, u32 node, u32 ranks, u32 thread, u32 threads) {
#pragma unroll 2
  for (u32 i = thread; i < work.tokens * work.slots; i += threads) {
    const u32 expert = id_at(work.ids, work.words, i), token = i / work.slots;
    if (expert >= work.experts || (kNode && expert / work.own - node >= ranks)) {
      set_entry(work.kept, i, 0);
      st_u32x2(reinterpret_cast<void*>(work.places + u64{i} * 8), kNode ? node : 0, 0);
      continue;
    }
    u32 row = entry_of(work.bases, expert);
#pragma unroll
    for (u32 from = 0; from < kListEntries; from += 4) {
      const Vec16 v = ld_vec16(reinterpret_cast<const void*>(work.list + u64{expert * kListEntries + from} * 4));
#pragma unroll
      for (u32 x = 0; x < 4; ++x) {
        // Its expert's tokens before it.
        const u32 past = (from + x) * kEntryTokens;
        row += __popc(token <= past ? 0 : token - past >= kEntryTokens ? v.x[x] : v.x[x] & ((1u << (token - past)) - 1));
      }
    }
    bool kept = true;
    if (work.keep != 0) {
      // A dropped one has the place of its expert's first row.
      const u32 begin = entry_of(work.begins, expert) - entry_of(work.begins, expert / work.own * work.own);
      kept = row - begin < work.keep;
      row = kept ? row : begin;
    }
    set_entry(work.kept, i, kept ? 1 : 0);
    st_u32x2(reinterpret_cast<void*>(work.places + u64{i} * 8), expert / work.own, row);
  }
}

MK_DEVICE void tabulate_phase(const Context&, const PlacesTask& work, u32, u32 thread, u32 threads) {
  tabulate_places<false>(work, 0, 0, thread, threads);
}

MK_DEVICE void tabulate_phase(const Context&, const NodePlacesTask& work, u32, u32 thread, u32 threads) {
  tabulate_places<true>(work, work.node, work.ranks, thread, threads);
}
