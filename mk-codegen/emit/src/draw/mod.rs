//! Plans as pictures: [`dot`] for Graphviz, [`svg`] laid out here.
//!
//! ```text
//! Plan ──> Scene (scene.rs: what there is to see) ──┬─> dot.rs
//!                                                   └─> layout.rs ──> svg.rs
//! ```
//!
//! Architecture invariants: a picture is a function of the plan alone, to the byte; no plan that can be read, wrong ones
//! included, makes it fail, since wrong plans are what one wants to look at; names from outside are escaped.

mod dot;
mod layout;
mod scene;
mod svg;

pub use dot::dot;
pub use svg::svg;
