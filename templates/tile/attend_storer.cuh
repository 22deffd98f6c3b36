// The agent that makes a tile's posts: one lane. Consumers store by themselves, and tell it when they have.
// Run by one lane. Hooks: see README.md. `Edges` names the plan's edges `staged` and `drained`.
template <class Config, class Edges, class Hooks>
MK_DEVICE void sm90_attend_storer(const Context& ctx, const AttendSmem<Config>& smem, const Hooks& hooks,
                                  AttendCursor<Config::kStages>& at) {
#pragma unroll 1
  for (ReaderTiles<AttendSmem<Config>, Edges, Hooks, false> tiles(smem, hooks, at.tiles); tiles.more(); tiles.advance()) {
    const AttendTile tile = hooks.decode(tiles.t);
    chaos_delay(ctx, Agent::Storer, tiles.t);
    mbarrier_wait<Edges::staged>(smem.staged(), at.q);
    hooks.after_store(ctx, tile);
    mbarrier_arrive<Edges::drained>(smem.drained());
    at.q ^= 1;
  }
}
