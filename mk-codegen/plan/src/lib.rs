//! The tile plan and its text format: the one data structure that the verifier, the CPU executor, the cost model, the
//! emitter and the printer share.

mod allowed;
mod axis;
mod blocks;
mod check;
mod contract;
mod documents;
mod elements;
pub mod entity;
mod epilogue;
mod expr;
mod factors;
mod filled;
mod in_place;
mod json;
pub mod leaf;
mod lookup;
mod mma;
mod names;
mod net;
mod plan;
mod points;
mod print;
mod print_c;
mod range;
mod reader;
mod routes;
mod runs;
mod tables;
pub mod target;
mod text;
mod tma;

pub use axis::Axis;
pub use blocks::{BlocksError, block_table, needed};
pub use check::{MAX_ENTRIES, StructureError};
pub use contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec};
pub use documents::{
    DocumentsError, Parts, bounds_table, check_documents, document_bounds, meets_table,
};
pub use entity::{Arena, BufId, DimId, EdgeId, Entity, FamId, RoleId, SigId, TabId};
pub use epilogue::{
    EPILOGUE_OPERANDS, EpilogueOp, SWIGLU_GRAD, applied_first, carry_last, gate_bias, gated,
    gates_operand, halves, named_operands, of_epilogue, quantized, saves_gates, scales_steps,
};
pub use expr::{BinOp, Env, EvalError, Expr, Var, no_tables};
pub use factors::Factors;
pub use filled::Source;
pub use in_place::in_place;
pub use json::{JsonError, PLAN_SCHEMA};
pub use leaf::{
    ALayout, AttendGradTile, AttendTile, BLayout, COPY_STAGE_BYTES, Carry, Consumers, CopyTile,
    CopyVia, DotTile, GradOf, Leaf, Mask, MergeTile, MmaTile, NormTile, QuantTile, ReduceTile,
    RopeTile, STATS, SinkTile, StatsTile, Store, SwigluGradTile, Tabulate, Tabulation,
    attend_grad_smem_bytes, attend_smem_bytes,
};
pub use lookup::Meeting;
pub use mma::{
    MMA_ROW_FACTOR_BYTES, MMA_SHIFT_COLUMNS, MMA_STEP_BYTES, cluster_part, mma_consumers,
    mma_exchange_bytes, mma_narrow, mma_panel_columns, mma_panels, mma_promotes,
    mma_shifted_stage_bytes, mma_shifts, mma_stage_bytes, mma_staging_bytes, mma_staging_panels,
    mma_step, mma_swaps, mma_three_by_rows, one_warpgroup_takes,
};
pub use names::{Agent, Mode, Operand, Point, Proxy, RoutePart, Side};
pub use net::NetPlan;
pub use plan::FEW_BLOCKS;
pub use plan::{
    Access, Buffer, Completion, Dim, Each, Family, InternalEdge, Mesh, Nic, NicOrdering, Places,
    Plan, Positions, Post, Role, RoleKind, Routed, Schedule, Scope, Signal, Space, Table,
    TableSource, Wait,
};
pub use points::{MAX_TASKS, PointError, Points, Region, Task};
pub use print::ExprText;
pub use print_c::{C_PRELUDE, CPrinter};
pub use range::{Range, Ranges};
pub use routes::{
    LIST_TOKENS, NodeRanks, RouteError, Routing, list_width, route_bases, route_coming,
    route_crossing, route_dropped, route_leaving, route_list, route_places, route_slots,
    route_sources, route_wanted, wanted_share,
};
pub use routes::{NO_EXPERT, kept, listed, own_experts};
pub use runs::{depth_dim, row_dim};
pub use tables::{FilledRows, TableSet, entries, prefix, tokens};
pub use text::ReadError;
