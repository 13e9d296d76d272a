//! The manual's pages, as the command writes them and as man(1) shows them.

use std::process::Command;

use towpath_testkit::has_programs;

use crate::running::*;

/// Writes the pages to a directory of a test's own, and returns their names.
fn written(directory: &Directory) -> Vec<String> {
    let place = directory.text("made/man1");
    assert_eq!(prints(&mut towpath(&["man", &place])), "");
    let names = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names.into_iter().map(|name| format!("{place}/{name}")).collect()
}

#[test]
fn every_verb_has_a_page_with_all_its_options() {
    let directory = Directory::new();
    let pages = written(&directory);
    let subcommands = subcommands();
    assert_eq!(pages.len(), subcommands.len() + 1, "{pages:?}");
    for subcommand in &subcommands {
        let name = format!("towpath-{subcommand}");
        let path = directory.text(&format!("made/man1/{name}.1"));
        // The page without roff's escapes.
        let page = std::fs::read_to_string(&path).unwrap().replace('\\', "");
        for option in options(subcommand) {
            // The option's own line has it in bold.
            assert!(page.contains(&format!("fB{option}fR")), "{name} has no {option}: {page}");
        }
        for part in [
            ".SH NAME\n",
            &format!("{name} - "),
            ".SH SYNOPSIS\n",
            &format!("fBtowpath {subcommand}fR"),
            ".SH DESCRIPTION\n",
            ".SH \"EXIT STATUS\"\n",
            ".SH EXAMPLES\n",
            &format!(".EX\ntowpath {subcommand}"),
            ".SH \"SEE ALSO\"\n",
            "fBtowpathfR(1)",
        ] {
            assert!(page.contains(part), "{name} has no {part:?}: {page}");
        }
        for hidden in ["--role", "--part", "--fault"] {
            assert!(!page.contains(hidden), "{name} has {hidden}");
        }
    }
    let page = std::fs::read_to_string(directory.text("made/man1/towpath-set.1")).unwrap();
    for setting in settings() {
        let name = setting.trim_end_matches('=').replace('-', "\\-");
        assert!(page.contains(&format!("\\fB{name}\\fR=")), "{setting} {page}");
    }
    let first = std::fs::read_to_string(directory.text("made/man1/towpath.1")).unwrap();
    assert_eq!(prints(&mut towpath(&["man"])), first);
    for subcommand in &subcommands {
        assert!(first.contains(&format!("towpath\\-{subcommand}(1)")), "{first}");
    }
    assert!(first.contains(".SH FILES\n") && first.contains("/run/towpath/DEVICE.sock"), "{first}");
    // The command also writes over existing pages.
    assert_eq!(written(&directory), pages);
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let directory = Directory::new();
    let file = directory.text("file");
    std::fs::write(&file, "precious").unwrap();
    let said = fails(&mut towpath(&["man", &file]), 1);
    assert!(said.contains(&format!("{file}: ")), "{said}");
    let said = fails(&mut towpath(&["man", "/proc/no/man1"]), 1);
    assert!(said.contains("/proc/no/man1: "), "{said}");
    std::fs::create_dir_all(directory.join("taken/towpath-ls.1")).unwrap();
    let said = fails(&mut towpath(&["man", &directory.text("taken")]), 1);
    assert!(said.contains("taken/towpath-ls.1: Is a directory"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

/// Returns a formatter's complaints about a page, and its output.
fn formatted(command: &mut Command) -> (String, String) {
    // The width of man(1) is that of most terminals.
    let output = finish(command.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80"));
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    (text(&output.stderr), text(&output.stdout))
}

#[test]
fn man_and_groff_have_nothing_to_complain_about() {
    let test = "manual::man_and_groff_have_nothing_to_complain_about";
    if !has_programs(test, &[("man", "man-db"), ("groff", "groff-base")]) {
        return;
    }
    let directory = Directory::new();
    let groff = |path: &str| formatted(Command::new("groff").args(["-man", "-ww", "-z", path])).0;
    let man = |path: &str| formatted(Command::new("man").args(["--warnings", "-l", path]));
    for path in written(&directory) {
        assert_eq!(groff(&path), "", "{path}");
        let (complaints, page) = man(&path);
        assert_eq!(complaints, "", "{path}");
        assert!(page.contains("EXIT STATUS") && page.contains("EXAMPLES"), "{page}");
        let wide: Vec<_> = page.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{path}: {wide:?}");
    }
    // The formatters do complain about a bad page.
    let bad = directory.text("bad.1");
    std::fs::write(&bad, ".TH bad 1\n.SH NAME\nbad \\- bad\n.NoSuchMacro\n").unwrap();
    assert!(groff(&bad).contains("NoSuchMacro"));
    assert!(man(&bad).0.contains("NoSuchMacro"));
}
