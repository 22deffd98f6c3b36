//! `mk completions` and `mk man`: scripts and pages that are made from the options themselves.

use crate::{failure::Result, output};
use std::path::PathBuf;

/// Options of `mk completions`.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell that reads the script
    shell: clap_complete::Shell,
}

/// Options of `mk man`.
#[derive(clap::Args)]
pub struct Man {
    /// Where to write `mk.1`, `mk-check.1`, … [default: `mk.1` alone, to stdout]
    dir: Option<PathBuf>,
}

/// Prints a script.
pub fn completions(args: &Completions, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "mk", &mut script);
    print(&script)
}

/// Prints the page of the command, or writes those of its commands, too.
pub fn man(args: &Man, mut command: clap::Command) -> Result<()> {
    let page = |command: &clap::Command| -> Result<Vec<u8>> {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).render(&mut page)?;
        Ok(page)
    };
    let Some(dir) = &args.dir else { return print(&page(&command)?) };
    output::writable_folder(dir)?;
    // Subcommands inherit the options of every command.
    command.build();
    let own = command.get_subcommands().filter(|c| c.get_name() != "help");
    for command in std::iter::once(&command).chain(own) {
        // `mk-check`, as git's commands have it.
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = dir.join(format!("{name}.1"));
        output::write_file(&path, &page(command)?)?;
        output::detail!("{}", path.display())?;
    }
    Ok(())
}

fn print(text: &[u8]) -> Result<()> {
    output::print(format_args!("{}", String::from_utf8_lossy(text)))
}
