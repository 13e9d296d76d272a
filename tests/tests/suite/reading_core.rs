//! The reading core of `ARCHITECTURE.md`: the files of `docs/life-of-a-packet.md`, that of the poll iteration, and the
//! modules that these import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::path_files;
use crate::sizes::lines_of_code;
use crate::structure::{self, Module, repository};

/// The most lines of code of the reading core.
const MOST_LINES: usize = 19_000;
/// What stands before the table in `ARCHITECTURE.md`.
const MARK: &str = "<!-- reading core -->\n";

/// A crate's modules, with the file of each.
struct Source {
    modules: BTreeMap<Module, String>,
    files: BTreeMap<Module, String>,
}

/// Returns the crates of the product by their names in paths, such as `towpath_queue`.
fn sources() -> BTreeMap<String, Source> {
    let sources = structure::crates().into_iter().map(|folder| {
        let modules = structure::modules(&folder);
        let files = modules.keys().map(|module| (module.clone(), file_of(&folder, module)));
        let name = folder.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let files = files.collect();
        (format!("towpath_{}", name.replace('-', "_")), Source { modules, files })
    });
    sources.collect()
}

/// Returns the file of a module, from the repository's root on.
fn file_of(folder: &Path, module: &Module) -> String {
    let stem: PathBuf = module.iter().collect();
    let all =
        [stem.with_extension("rs"), stem.join("mod.rs"), stem.join("lib.rs"), stem.join("main.rs")];
    let found = all.iter().map(|path| folder.join(path)).find(|path| path.is_file());
    let found = found.unwrap_or_else(|| panic!("{module:?} of {}", folder.display()));
    found.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned()
}

impl Source {
    /// Adds the file of the module that a path in `module` leads to. If that module only exports what the path names,
    /// adds the module that it exports from. Crates' roots only export.
    fn add(&self, module: &Module, path: &str, found: &mut BTreeSet<String>) {
        let target = structure::resolve(&self.modules, module, path).unwrap_or_default();
        if !target.is_empty() && !found.insert(self.files[&target].clone()) {
            return;
        }
        let Some(item) = path.rsplit("::").next() else { return };
        for export in structure::uses(&self.modules[&target]) {
            let leads_on = export.rsplit("::").next() == Some(item) && export.contains("::");
            if leads_on && structure::resolve(&self.modules, &target, &export).is_some() {
                self.add(&target, &export, found);
            }
        }
    }
}

/// Returns the files of the modules that a module imports.
fn imported(sources: &BTreeMap<String, Source>, name: &str, module: &Module) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in structure::imports(&sources[name].modules[module]) {
        let (first, rest) = path.split_once("::").unwrap_or((&path, ""));
        match sources.get(first) {
            Some(other) => other.add(&Module::new(), &format!("crate::{rest}"), &mut found),
            None if ["crate", "self", "super"].contains(&first) => {
                sources[name].add(module, &path, &mut found);
            }
            None => {
                let target = structure::resolve(&sources[name].modules, module, &path);
                found.extend(target.map(|target| sources[name].files[&target].clone()));
            }
        }
    }
    found
}

/// Returns the files of the reading core.
fn core() -> BTreeSet<String> {
    let sources = sources();
    let lists = path_files::lists();
    let steps = lists.iter().flat_map(|(_, steps)| steps.iter().map(|step| step.file.clone()));
    let steps: BTreeSet<String> = steps.chain([path_files::ITERATION.to_owned()]).collect();
    let mut core = steps.clone();
    for (name, source) in &sources {
        for (module, _) in source.files.iter().filter(|(_, file)| steps.contains(*file)) {
            core.extend(imported(&sources, name, module));
        }
    }
    core
}

/// Returns the rows of the table, one for each crate, and the lines of code of all files.
fn rows(core: &BTreeSet<String>) -> (String, usize) {
    let mut crates: BTreeMap<&str, (Vec<&str>, usize)> = BTreeMap::new();
    for file in core {
        let (name, path) = file.strip_prefix("crates/").unwrap().split_once("/src/").unwrap();
        let entry = crates.entry(name).or_default();
        entry.0.push(path);
        entry.1 += lines_of_code(&repository().join(file));
    }
    let row = |(name, (files, lines)): (&&str, &(Vec<&str>, usize))| {
        let files: Vec<String> = files.iter().map(|file| format!("`{file}`")).collect();
        // The page is right as long as the file's lines change little.
        let lines = lines.div_ceil(100) * 100;
        format!("| [{name}](crates/{name}/src) | {} | {lines} |\n", files.join(", "))
    };
    let total = crates.values().map(|(_, lines)| lines).sum();
    (crates.iter().map(row).collect(), total)
}

#[test]
fn the_reading_core_is_named_and_short() {
    let core = core();
    let (rows, total) = rows(&core);
    println!("{} files, {total} lines of code", core.len());
    assert!((5_000..=MOST_LINES).contains(&total), "{total} lines, at most {MOST_LINES}");
    let page = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let table = page.split_once(MARK).expect("the table's mark").1;
    let named: String = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(named, rows, "the table of ARCHITECTURE.md is to have these rows:\n{rows}");
}
