//! The `ottava` program: everything is in `cli`, over the library's public interface.

#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
