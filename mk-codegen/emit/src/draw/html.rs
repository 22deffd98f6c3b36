//! Plans as one HTML page that needs nothing else: the picture, which zooms, above the text.

use super::svg::{escape, stacked};
use mk_plan::Plan;

const PAGE: &str = include_str!("plan.html");

/// The page of a plan, or of several that are launched one after the other.
pub fn html(plans: &[&Plan]) -> String {
    let names: Vec<&str> = plans.iter().map(|p| p.name.as_str()).collect();
    let texts: Vec<String> = plans.iter().map(|p| p.to_string()).collect();
    let page = PAGE.replacen("@TITLE@", &escape(&names.join(", ")), 1);
    // The text comes before the picture, in which names of its places stand.
    let page = page.replacen("@TEXT@", &escape_lines(&texts.join("\n")), 1);
    page.replacen("@SVG@", &stacked(plans), 1)
}

fn escape_lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}
