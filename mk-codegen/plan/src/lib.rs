//! The tile plan and its text format: the one data structure that the verifier, the CPU executor, the cost model, the
//! emitter and the printer share.

mod allowed;
mod check;
mod contract;
mod elements;
pub mod entity;
mod expr;
mod factors;
mod in_place;
mod json;
mod leaf;
mod lookup;
mod mma;
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
mod tma;

pub use allowed::Allowed;
pub use check::{MAX_ENTRIES, StructureError};
pub use contract::{Arity, Contract, EdgeSpec, OperandSpec};
pub use elements::{Elements, OneType};
pub use entity::{Arena, BufId, DimId, EdgeId, Entity, FamId, RoleId, SigId, TabId};
pub use expr::{BinOp, Env, EvalError, Expr, Var, no_tables};
pub use factors::Factors;
pub use in_place::in_place;
pub use json::{JsonError, PLAN_SCHEMA};
pub use leaf::{
    ALayout, Agent, BLayout, COPY_STAGE_BYTES, Carry, Consumers, CopyVia, EPILOGUE_OPERANDS,
    EpilogueOp, GradOf, Leaf, Mask, Operand, RoutePart, STATS, SWIGLU_GRAD, Store, Tabulation,
    attend_grad_smem_bytes, attend_smem_bytes, carry_last, gated, halves, saves_gates,
};
pub use mma::{
    cluster_part, mma_consumers, mma_exchange_bytes, mma_panel_columns, mma_panels,
    mma_stage_bytes, mma_staging_bytes, mma_staging_panels, mma_swaps, mma_three_by_rows,
    one_warpgroup_takes,
};
pub use net::NetPlan;
pub use plan::FEW_BLOCKS;
pub use plan::{
    Access, Axis, Buffer, Completion, Dim, Each, Family, InternalEdge, Mesh, Mode, Nic,
    NicOrdering, Plan, Point, Positions, Post, Proxy, Role, RoleKind, Schedule, Scope, Signal,
    Space, Table, TableSource, Wait,
};
pub use points::{MAX_TASKS, PointError, Points, Region, Task};
pub use print::ExprText;
pub use print_c::{C_PRELUDE, CPrinter};
pub use range::{Range, Ranges};
pub use reader::ReadError;
pub use routes::{
    LIST_TOKENS, RouteError, Routed, Routing, list_width, route_bases, route_list, route_places,
    route_sources, route_wanted,
};
pub use routes::{kept, listed, own_experts};
pub use runs::{depth_dim, row_dim};
pub use tables::{BlocksError, FilledRows, TableSet, block_table};
pub use tables::{entries, needed};
