//! The `ottava` program: parses the command line and hands over to the library's `cli`.

fn main() {}
