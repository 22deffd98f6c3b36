//! A scene for Graphviz: `mk plan --format dot .. | dot -Tsvg`.

use super::scene::{Block, PlaceKind, PortKind, Scene};
use mk_plan::Plan;
use std::fmt::Write;

/// The plan as a directed graph: a cluster for each role, boxes for families, rounded boxes for memory (dashed: of
/// peers), ellipses for signals.
pub fn dot(plan: &Plan) -> String {
    let scene = Scene::of(plan);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&scene, &mut out);
    out
}

fn write(scene: &Scene, out: &mut String) -> std::fmt::Result {
    writeln!(out, "digraph {} {{", quote(&scene.title))?;
    writeln!(out, "  rankdir=LR")?;
    writeln!(out, "  label={}", quote(&format!("{}\n{}", scene.title, scene.subtitle)))?;
    writeln!(out, "  node [fontname=monospace, fontsize=11]")?;
    writeln!(out, "  edge [fontname=monospace, fontsize=10]")?;
    for (i, lane) in scene.lanes.iter().enumerate() {
        writeln!(out, "  subgraph cluster_{i} {{")?;
        writeln!(out, "    label={}", quote(&format!("{}\n{}", lane.name, lane.note)))?;
        for block in scene.blocks.iter().filter(|b| b.lane == i) {
            writeln!(out, "    {} [shape=box, label={}]", block.id, quote(&label(block)))?;
        }
        writeln!(out, "  }}")?;
    }
    for place in &scene.places {
        let style = match place.kind {
            PlaceKind::Caller | PlaceKind::Own => "shape=box, style=rounded",
            PlaceKind::Peers => "shape=box, style=\"rounded,dashed\", color=\"#bc4c00\"",
            PlaceKind::OwnSignal => "shape=ellipse, color=\"#1a7f37\"",
            PlaceKind::PeerSignal => "shape=ellipse, style=dashed, color=\"#8250df\"",
        };
        let label = quote(&format!("{}\n{}", place.name, place.note));
        writeln!(out, "  {} [{style}, label={label}]", quote(&place.id))?;
    }
    for block in &scene.blocks {
        for port in &block.ports {
            let place = quote(&scene.places[port.place].id);
            let ends = match port.kind.is_into_family() {
                true => format!("{place} -> {}", block.id),
                false => format!("{} -> {place}", block.id),
            };
            let style = match port.kind {
                PortKind::Read => "color=\"#0969da\"",
                PortKind::Write => "color=\"#bc4c00\"",
                PortKind::Wait | PortKind::Post => "color=\"#8250df\", style=dashed",
            };
            let (text, detail) = (quote(&port.text), quote(&port.detail));
            writeln!(out, "  {ends} [{style}, label={text}, tooltip={detail}]")?;
        }
    }
    writeln!(out, "}}")
}

fn label(block: &Block) -> String {
    let head = format!("{} {}", block.id, block.name);
    [head].into_iter().chain(block.notes.iter().cloned()).collect::<Vec<_>>().join("\n")
}

/// A string of the DOT language.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
