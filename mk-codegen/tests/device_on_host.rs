//! Parts of the device library that are plain C++, run here: how threads go through rows, and agents through a ring.

use mk_codegen::emit::library;
use std::{env, fs, process::Command};

/// The definition of a struct of the library, with its template line.
fn definition<'a>(library: &'a str, head: &str) -> &'a str {
    let begin = library.find(head).unwrap_or_else(|| panic!("`{head}` is in the library"));
    let length = library[begin..].find("\n};\n").expect("it ends") + "\n};\n".len();
    &library[begin..begin + length]
}

const MAIN: &str = r#"
// Every vector of every row belongs to one step of one thread.
template <u32 kBytes>
static int walk(u32 threads, u32 rows, u32 vectors, u32 most_steps) {
  std::vector<int> seen(static_cast<size_t>(rows) * vectors);
  u32 most = 0;
  for (u32 thread = 0; thread < threads; ++thread) {
    RowWalk at = RowWalk::of<kBytes>(thread, threads, rows, vectors);
    u32 steps = 0;
    for (; at.row < rows; ++steps) {
      if (at.vector >= vectors) return printf("%u bytes, %u rows of %u: thread %u is at %u\n", kBytes, rows, vectors, thread, at.vector), 1;
      ++seen[static_cast<size_t>(at.row) * vectors + at.vector];
      at.forget();
      at.advance();
    }
    most = steps > most ? steps : most;
  }
  for (int n : seen) {
    if (n != 1) return printf("%u bytes, %u rows of %u: a vector is taken %d times\n", kBytes, rows, vectors, n), 1;
  }
  if (most > most_steps) return printf("%u bytes, %u rows of %u: %u steps, not %u\n", kBytes, rows, vectors, most, most_steps), 1;
  return 0;
}

// Past so many steps at once is past as many steps.
template <u32 kStages>
static int ring() {
  for (u32 begin = 0; begin < 2 * kStages; ++begin) {
    for (u32 steps = 1; steps < 5 * kStages; ++steps) {
      RingCursor<kStages> one, all;
      for (u32 i = 0; i < begin; ++i) one.advance(), all.advance();
      u32 last = 0;
      for (u32 i = 0; i < steps; ++i) last = one.stage, one.advance();
      all.skip(steps);
      if (one.stage != all.stage || one.phase != all.phase || all.previous_stage() != last) {
        return printf("%u stages, %u steps from %u: %u and %u\n", kStages, steps, begin, one.stage, all.stage), 1;
      }
    }
  }
  return 0;
}

int main() {
  int wrong = ring<2>() + ring<3>() + ring<4>() + ring<7>();
  const u32 any = ~0u;
  for (u32 threads : {128u, 256u}) {
    for (u32 rows : {0u, 1u, 3u, 8u, 31u, 64u}) {
      for (u32 vectors : {0u, 1u, 5u, 8u, 12u, 16u, 24u, 31u, 32u, 33u, 48u, 64u, 100u, 127u, 128u, 129u, 1001u}) {
        wrong += walk<16>(threads, rows, vectors, any) + walk<4>(threads, rows, vectors, any) + walk<2>(threads, rows, vectors, any);
      }
    }
  }
  // Tiles of 64 rows and 128, 192 and 256 columns: no lane idles.
  for (u32 vectors : {16u, 24u, 32u}) wrong += walk<16>(128, 64, vectors, vectors / 2) + walk<16>(256, 64, vectors, vectors / 4);
  return wrong != 0;
}
"#;

#[test]
fn rows_and_rings_are_walked_whole() {
    let library = library::text();
    let structs = [
        definition(&library, "template <u32 kStages>\nstruct RingCursor {"),
        definition(&library, "struct RowWalk {"),
    ];
    let head = "#include <cstdint>\n#include <cstdio>\n#include <vector>\ntypedef uint32_t u32;\n#define MK_DEVICE inline\n";
    let folder = env::temp_dir().join(format!("mk-device-on-host-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, program) = (folder.join("walk.cpp"), folder.join("walk"));
    fs::write(&source, [head, structs[0], structs[1], MAIN].concat()).expect("writable");
    let built =
        Command::new("c++").args(["-std=c++17", "-O1", "-o"]).args([&program, &source]).output();
    let Ok(built) = built else {
        fs::remove_dir_all(&folder).expect("its folder goes");
        println!("SKIPPED rows_and_rings_are_walked_whole: no C++ compiler");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().expect("runs");
    fs::remove_dir_all(&folder).expect("its folder goes");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
