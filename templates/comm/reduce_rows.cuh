// Adds rows of several sources, in a fixed order, in fp32, does to the sums what the plan says, and writes them, rounded, to one or
// several places. Ordinary
// loads and stores by a part of the CTA; what a source's rows were written by does not matter after the acquire.
struct ReduceTask {
  u32 task;               // linear index in the role
  u32 family;
  u32 sources;
  u64 source_stride_bytes;  // from one source to the next
  u64 source_pitch_bytes;
  u32 columns;            // elements of a row
  u32 rows;
};

// Sources whose loads are in flight together.
constexpr u32 kReduceSources = 4;

// How many elements one thread takes at a time: whole vectors of 16 bytes of either type.
template <Dtype kFrom, Dtype kTo>
struct ReduceStep {
  static constexpr u32 kElements = 16 / (element_bytes(kFrom) < element_bytes(kTo) ? element_bytes(kFrom) : element_bytes(kTo));
  static constexpr u32 kLoads = kElements * element_bytes(kFrom) / 16;
  static constexpr u32 kStores = kElements * element_bytes(kTo) / 16;
  // Places that a thread loads together; times the sources, so that the loads cover the latency of HBM. Of f32 to f32, ptxas keeps more
  // addresses than there are registers for twice as many.
  static constexpr u32 kSteps = 4 / kLoads;
  static constexpr u32 kStepsOfFew = kFrom == Dtype::F32 && kTo == Dtype::F32 ? 4 : 8 / kLoads;
};

// Destinations that registers hold.
constexpr u32 kHeldTargets = 16;

// Where a task's sums go: looked up once, because the hooks decode the task for it.
template <class Hooks, bool kHeld = (Hooks::kDestinations <= kHeldTargets)>
struct ReduceTargets {
  static constexpr u32 kUnroll = Hooks::kDestinations;
  u64 base[Hooks::kDestinations];
  u64 pitch_bytes[Hooks::kDestinations];

  MK_DEVICE ReduceTargets(const Hooks& hooks, const ReduceTask& task) {
#pragma unroll
    for (u32 d = 0; d < Hooks::kDestinations; ++d) {
      base[d] = hooks.destination(task, d);
      pitch_bytes[d] = hooks.destination_pitch(task, d);
    }
  }
  MK_DEVICE u64 pitch(u32 d) const { return pitch_bytes[d]; }
  MK_DEVICE u64 at(u32 d, u32 row, u64 byte) const { return base[d] + row * pitch_bytes[d] + byte; }
};

// Of more, each time anew.
template <class Hooks>
struct ReduceTargets<Hooks, false> {
  static constexpr u32 kUnroll = 1;
  const Hooks& hooks;
  const ReduceTask& task;

  MK_DEVICE ReduceTargets(const Hooks& hooks, const ReduceTask& task) : hooks(hooks), task(task) {}
  MK_DEVICE u64 pitch(u32 d) const { return hooks.destination_pitch(task, d); }
  MK_DEVICE u64 at(u32 d, u32 row, u64 byte) const { return hooks.destination(task, d) + row * pitch(d) + byte; }
};

// Where operands of what is done to a task's sums begin, looked up once.
template <u32 kOperands>
struct ReduceOperands {
  u64 base[kOperands];
  u64 pitch_bytes[kOperands];

  template <class Hooks>
  MK_DEVICE ReduceOperands(const Hooks& hooks, const ReduceTask& task) {
#pragma unroll
    for (u32 i = 0; i < kOperands; ++i) {
      base[i] = hooks.operand(task, i);
      pitch_bytes[i] = hooks.operand_pitch(i);
    }
  }
  MK_DEVICE u64 at(u32 i, u32 row, u64 byte) const { return base[i] + row * pitch_bytes[i] + byte; }
  // A multiple of 16 where every row begins at a multiple of 16 bytes, or of as many as `kElements` have.
  template <Dtype kDtype, u32 kElements>
  MK_DEVICE u64 alignment(u32 i) const {
    constexpr u32 kBytes = kElements * element_bytes(kDtype);
    return (base[i] | pitch_bytes[i]) * (kBytes < 16 ? 16 / kBytes : 1);
  }
};
template <>
struct ReduceOperands<0> {
  template <class Hooks>
  MK_DEVICE ReduceOperands(const Hooks&, const ReduceTask&) {}
};

// Elements of each of them at one place, as they lie in memory.
template <u32 kOperands, u32 kElements>
struct OperandColumns {
  u32 words[kOperands > 0 ? kOperands : 1][kElements];

  template <Dtype kDtype, u32 kOperand>
  MK_DEVICE void load(u64 address) {
    constexpr u32 kBytes = kElements * element_bytes(kDtype);
    if constexpr (kBytes >= 16) {
#pragma unroll
      for (u32 l = 0; l < kBytes / 16; ++l) {
        const Vec16 v = ld_vec16(reinterpret_cast<const void*>(address + l * 16));
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[kOperand][l * 4 + i] = v.x[i];
      }
    } else if constexpr (kBytes >= 4) {
#pragma unroll
      for (u32 l = 0; l < kBytes / 4; ++l) words[kOperand][l] = ld_u32(reinterpret_cast<const void*>(address + l * 4));
    } else {
      words[kOperand][0] = ld_u16(reinterpret_cast<const void*>(address));
    }
  }
  template <Dtype kDtype, u32 kOperand>
  MK_DEVICE float at(u32 i) const {
    if constexpr (kDtype == Dtype::F32) return __uint_as_float(words[kOperand][i]);
    else return i % 2 == 0 ? unpack_lo<kDtype>(words[kOperand][i / 2]) : unpack_hi<kDtype>(words[kOperand][i / 2]);
  }
};

// Those of a thread's next `kSteps` places, all in flight together; past the end nothing.
template <u32 kSteps, u32 kElements, class Hooks>
MK_DEVICE void load_operands(OperandColumns<Hooks::kOperands, kElements> (&y)[kSteps], const ReduceOperands<Hooks::kOperands>& from,
                             const ReduceTask& task, RowWalk at) {
  if constexpr (Hooks::kOperands > 0) {
#pragma unroll
    for (u32 i = 0; i < kSteps; ++i) {
      if (at.row < task.rows) Hooks::load(from, at.row, at.vector * kElements, y[i]);
      at.advance();
    }
  }
}

// What the plan does to sums at one place before they are rounded.
template <u32 kElements, class Hooks>
MK_DEVICE void finish_sums(float* sum, const OperandColumns<Hooks::kOperands, kElements>& y) {
  if constexpr (Hooks::kFinishes) Hooks::finish(sum, y);
}

// Elements of 16 bytes.
template <Dtype kDtype>
constexpr u32 kVectorElements = 16 / element_bytes(kDtype);

// A vector's elements, widened and added.
template <Dtype kDtype>
MK_DEVICE void add_vector(float* sum, Vec16 v) {
  const u32 (&words)[4] = v.x;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kDtype == Dtype::F32) {
      sum[i] += __uint_as_float(words[i]);
    } else {
      sum[2 * i] += unpack_lo<kDtype>(words[i]);
      sum[2 * i + 1] += unpack_hi<kDtype>(words[i]);
    }
  }
}

template <Dtype kDtype>
MK_DEVICE Vec16 round_vector(const float* sum) {
  Vec16 v;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if constexpr (kDtype == Dtype::F32) {
      v.x[i] = __float_as_uint(sum[i]);
    } else if constexpr (element_bytes(kDtype) == 1) {
      const u32 low = pack2_bytes<kDtype>(sum[4 * i], sum[4 * i + 1]);
      v.x[i] = low | static_cast<u32>(pack2_bytes<kDtype>(sum[4 * i + 2], sum[4 * i + 3])) << 16;
    } else {
      v.x[i] = pack2<kDtype>(sum[2 * i], sum[2 * i + 1]);
    }
  }
  return v;
}

// One element, widened; and rounded.
template <Dtype kDtype>
MK_DEVICE float load_element(u64 address) {
  const void* p = reinterpret_cast<const void*>(address);
  if constexpr (kDtype == Dtype::F32) return __uint_as_float(ld_u32(p));
  else return widen<kDtype>(ld_u16(p));
}
template <Dtype kDtype>
MK_DEVICE void store_element(u64 address, float x) {
  void* p = reinterpret_cast<void*>(address);
  if constexpr (kDtype == Dtype::F32) st_u32(p, __float_as_uint(x));
  else if constexpr (element_bytes(kDtype) == 1) st_u8(p, narrow<kDtype>(x));
  else st_u16(p, narrow<kDtype>(x));
}

// Loads `kSteps` vectors of a thread, of sources `s0` to `s0 + kReduceSources`, all in flight together; past the end nothing.
template <Dtype kFrom, u32 kSteps, u32 kLoads>
MK_DEVICE void load_vectors(Vec16 (&v)[kSteps][kReduceSources][kLoads], const ReduceTask& task, u64 source, RowWalk at, u32 s0) {
#pragma unroll
  for (u32 i = 0; i < kSteps; ++i) {
    const u64 first = source + at.row * task.source_pitch_bytes + u64{at.vector} * (kLoads * 16);
#pragma unroll
    for (u32 s = 0; s < kReduceSources; ++s) {
      if (at.row < task.rows && s0 + s < task.sources) {
#pragma unroll
        for (u32 l = 0; l < kLoads; ++l) {
          v[i][s][l] = ld_vec16(reinterpret_cast<const void*>(first + (s0 + s) * task.source_stride_bytes + l * 16));
        }
      }
    }
    at.advance();
  }
}

// Adds those of one place.
template <Dtype kFrom, u32 kLoads>
MK_DEVICE void add_sources(float* sum, const Vec16 (&v)[kReduceSources][kLoads], const ReduceTask& task, u32 s0) {
#pragma unroll
  for (u32 s = 0; s < kReduceSources; ++s) {
    if (s0 + s < task.sources) {
#pragma unroll
      for (u32 l = 0; l < kLoads; ++l) add_vector<kFrom>(sum + l * kVectorElements<kFrom>, v[s][l]);
    }
  }
}

template <Dtype kTo, u32 kStores, class Hooks>
MK_DEVICE void store_sums(const ReduceTargets<Hooks>& targets, const float* sum, const RowWalk& at) {
  const u64 to = u64{at.vector} * (kStores * 16);
#pragma unroll
  for (u32 l = 0; l < kStores; ++l) {
    const Vec16 rounded = round_vector<kTo>(sum + l * kVectorElements<kTo>);
#pragma unroll ReduceTargets<Hooks>::kUnroll
    for (u32 d = 0; d < Hooks::kDestinations; ++d) st_vec16(reinterpret_cast<void*>(targets.at(d, at.row, to + l * 16)), rounded);
  }
}

// The first `whole` columns of all rows, whose addresses and pitches are multiples of 16 bytes. Few sources: no sum has to be kept
// while others are loaded, so that registers are left for more vectors.
template <Dtype kFrom, Dtype kTo, u32 kThreads, bool kFew, class Hooks>
MK_DEVICE void reduce_rows_by_16(const ReduceTask& task, u64 source, const ReduceTargets<Hooks>& targets,
                                 const ReduceOperands<Hooks::kOperands>& operands, u32 thread, u32 whole) {
  typedef ReduceStep<kFrom, kTo> Step;
  constexpr u32 kOperands = Hooks::kOperands, kLoads = Step::kLoads;
  // Operands and many destinations take registers, too.
  constexpr u32 kOthers = kOperands == 0 ? 0 : kOperands + (Hooks::kDestinations > 1);
  constexpr bool kRoom = kOperands == 0 || kOperands + Hooks::kDestinations <= 5;
  constexpr u32 kSteps = kFew ? Step::kStepsOfFew * kReduceSources / (kReduceSources + kOthers)
                              : kRoom ? Step::kSteps : Step::kSteps / 2;
  RowWalk at = RowWalk::of<16>(thread, kThreads, task.rows, whole / Step::kElements);
#pragma unroll 1
  while (at.row < task.rows) {
    Vec16 v[kSteps][kReduceSources][kLoads];
    OperandColumns<kOperands, Step::kElements> y[kSteps];
    if constexpr (kFew) {
      load_vectors<kFrom, kSteps, kLoads>(v, task, source, at, 0);
      load_operands<kSteps, Step::kElements, Hooks>(y, operands, task, at);
      at.forget();
#pragma unroll
      for (u32 i = 0; i < kSteps; ++i) {
        float sum[Step::kElements] = {};
        add_sources<kFrom, kLoads>(sum, v[i], task, 0);
        finish_sums<Step::kElements, Hooks>(sum, y[i]);
        if (at.row < task.rows) store_sums<kTo, Step::kStores>(targets, sum, at);
        at.advance();
      }
    } else {
      float sum[kSteps][Step::kElements] = {};
#pragma unroll 1
      for (u32 s0 = 0; s0 < task.sources; s0 += kReduceSources) {
        load_vectors<kFrom, kSteps, kLoads>(v, task, source, at, s0);
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) add_sources<kFrom, kLoads>(sum[i], v[i], task, s0);
      }
      load_operands<kSteps, Step::kElements, Hooks>(y, operands, task, at);
#pragma unroll
      for (u32 i = 0; i < kSteps; ++i) {
        finish_sums<Step::kElements, Hooks>(sum[i], y[i]);
        if (at.row < task.rows) store_sums<kTo, Step::kStores>(targets, sum[i], at);
        at.advance();
      }
    }
  }
}

// Columns `first` and on of every row, one by one.
template <Dtype kFrom, Dtype kTo, u32 kThreads, class Hooks>
MK_DEVICE void reduce_elements(const ReduceTask& task, u64 source, const ReduceTargets<Hooks>& targets,
                               const ReduceOperands<Hooks::kOperands>& operands, u32 thread, u32 first) {
  constexpr u32 kWarps = kThreads / 32;
#pragma unroll 1
  for (u32 row = thread / 32; row < task.rows; row += kWarps) {
#pragma unroll 1
    for (u32 column = first + thread % 32; column < task.columns; column += 32) {
      const u64 at = static_cast<u64>(column) * element_bytes(kFrom), to = static_cast<u64>(column) * element_bytes(kTo);
      OperandColumns<Hooks::kOperands, 1> y;
      if constexpr (Hooks::kOperands > 0) Hooks::load(operands, row, column, y);
      float sum = 0.0f;
#pragma unroll 1
      for (u32 s = 0; s < task.sources; ++s) {
        sum += load_element<kFrom>(source + s * task.source_stride_bytes + row * task.source_pitch_bytes + at);
      }
      finish_sums<1, Hooks>(&sum, y);
#pragma unroll ReduceTargets<Hooks>::kUnroll
      for (u32 d = 0; d < Hooks::kDestinations; ++d) store_element<kTo>(targets.at(d, row, to), sum);
    }
  }
}

// Run by `kTeams` teams of `kThreads` threads each, all numbered from 0 by `thread`; a multiple of 32. Teams take turns at the
// CTA's tasks, so that one adds while another waits for a signal, or for its stores. The first warp of a team waits and posts for
// it, over the named barriers from `kBarrier` on, as in `copy_rows`. Barriers of teams are for teams alone: one that has no task
// left is at the next leaf, with all threads of the CTA, while the other is still here.
template <Dtype kFrom, Dtype kTo, u32 kTeams, u32 kThreads, u32 kBarrier, class Edges, class Hooks>
MK_DEVICE void reduce_rows(const Context& ctx, const Hooks& hooks, u32 thread) {
  const u32 team = thread / kThreads;  // below kTeams
  thread %= kThreads;
#pragma unroll 1
  for (Turns<Hooks> turns(ctx, hooks, team, kTeams);; turns.advance()) {
    ReduceTask task;
    if (!turns.begin(task, thread, [&](const ReduceTask& next) {
          chaos_delay(ctx, Agent::Copier, next.task);
          hooks.before_load(ctx, next);
        }, [&] { team_sync<Edges::start, kBarrier, kTeams, kThreads>(team); })) {
      break;
    }
    if (!ctx.aborted()) {
      const u64 source = hooks.source(task);
      const ReduceTargets<Hooks> targets(hooks, task);
      const ReduceOperands<Hooks::kOperands> operands(hooks, task);
      u64 alignment = source | task.source_stride_bytes | task.source_pitch_bytes;
#pragma unroll ReduceTargets<Hooks>::kUnroll
      for (u32 d = 0; d < Hooks::kDestinations; ++d) alignment |= targets.at(d, 0, 0) | targets.pitch(d);
      if constexpr (Hooks::kOperands > 0) alignment |= Hooks::template alignment<ReduceStep<kFrom, kTo>::kElements>(operands);
      u32 done = 0;
      if (alignment % 16 == 0) {
        done = task.columns - task.columns % ReduceStep<kFrom, kTo>::kElements;
        if (task.sources <= kReduceSources) {
          reduce_rows_by_16<kFrom, kTo, kThreads, true, Hooks>(task, source, targets, operands, thread, done);
        } else {
          reduce_rows_by_16<kFrom, kTo, kThreads, false, Hooks>(task, source, targets, operands, thread, done);
        }
      }
      if (done < task.columns) reduce_elements<kFrom, kTo, kThreads, Hooks>(task, source, targets, operands, thread, done);
    }
    team_sync<Edges::done, kBarrier, kTeams, kThreads>(team);
    if (thread < 32) {
      hooks.after_store(ctx, task);
      __syncwarp();
    }
  }
}
