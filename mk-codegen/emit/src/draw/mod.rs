//! Plans as pictures: [`dot`] for Graphviz, [`svg`] laid out here, [`html`] to zoom in.
//!
//! ```text
//! Plan ──> Scene (scene.rs: what there is to see) ──┬─> dot.rs
//!                                                   └─> layout.rs ──> svg.rs ──> html.rs
//! ```
//!
//! Architecture invariants: a picture is a function of the plan alone, to the byte; no plan that can be read, wrong
//! ones included, makes it fail, since wrong plans are what one wants to look at; names from outside are escaped.

mod dot;
mod html;
mod layout;
mod scene;
mod svg;

pub use dot::dot;
pub use html::html;
pub use svg::{stacked, svg};
