//! Plans as JSON, for programs; people and tests have the text format.
//!
//! Every field of [`Plan`] by its name. Ids are strings (`"buf3"`), and so are variables (`"rank"`, `"loop0"`); an
//! expression is an object with its kind (`{"Bin": ["Add", {"Var": "rank"}, {"Const": 1}]}`). `schema` counts
//! incompatible changes.

use super::{Plan, ReadError};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

/// The schema that is written, and the only one that is read.
pub const PLAN_SCHEMA: u64 = 1;

/// A JSON text that is not a plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JsonError {
    /// It is no JSON, or a field is missing, unknown, or of another kind.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version of mk, or of something else.
    #[error(
        "the text has {found}, and this version reads `\"schema\": {PLAN_SCHEMA}`: make the plan anew with `mk plan \
         --format json`"
    )]
    Schema {
        /// What it has.
        found: String,
    },
    /// What it says is no plan that the text format can say.
    #[error("the plan cannot be written as text and read back: {0}")]
    Text(ReadError),
    /// What it says is another plan when it has been written as text and read back.
    #[error(
        "the plan does not mean the same written as text: names must be such that text is read by them"
    )]
    Other,
}

#[derive(Serialize)]
struct Versioned<'p> {
    schema: u64,
    #[serde(flatten)]
    plan: &'p Plan,
}

impl Plan {
    /// The plan as JSON, in lines.
    ///
    /// # Errors
    /// If it cannot be written, which no plan is known to cause.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&Versioned { schema: PLAN_SCHEMA, plan: self })
    }

    /// Reads what [`Self::to_json`] writes. As with text, [`Plan::check_structure`] checks the rest.
    ///
    /// # Errors
    /// If it is no such text, of another schema, or beyond the limits of the text format.
    pub fn from_json(text: &str) -> Result<Plan, JsonError> {
        let mut value: Value = serde_json::from_str(text)?;
        let schema = value.as_object_mut().and_then(|fields| fields.remove("schema"));
        if schema.as_ref().and_then(Value::as_u64) != Some(PLAN_SCHEMA) {
            let found = schema.map_or("no `schema`".into(), |s| format!("`\"schema\": {s}`"));
            return Err(JsonError::Schema { found });
        }
        let plan: Plan = serde_json::from_value(value)?;
        let again: Plan = plan.to_string().parse().map_err(JsonError::Text)?;
        if again == plan { Ok(plan) } else { Err(JsonError::Other) }
    }
}
