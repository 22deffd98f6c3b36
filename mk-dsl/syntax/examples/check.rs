//! Checks the pipelines given as arguments, and prints each as a typed graph.

use mk_syntax::Program;

fn main() {
    for source in std::env::args().skip(1) {
        match Program::parse(&source) {
            Ok(program) => println!("{program}\n"),
            Err(mistakes) => println!("{mistakes}\n"),
        }
    }
}
