//! All tests of the crate's public face, in one program: what they draw their cases from is compiled
//! and linked once.

mod bounds;
mod coarsen;
mod collectives;
mod common;
mod contract;
mod dispatch;
mod expand;
mod fusion;
mod graph;
mod labelling;
mod numbering;
mod orders;
mod place;
mod reduce;
mod rules;
mod runtime;
mod schedule;
mod search;
mod simulate;
mod transitive;

/// A file that no line above names would never be compiled.
#[test]
fn every_file_is_a_part() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let part = name.strip_suffix(".rs").unwrap_or(&name);
        let line = format!("\nmod {part};\n");
        assert!(
            part == "main" || include_str!("main.rs").contains(&line),
            "tests/{name} is not in tests/main.rs"
        );
    }
}
