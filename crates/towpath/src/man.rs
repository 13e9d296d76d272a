//! `towpath man`: the manual's pages, one for the command and one for each subcommand, generated
//! from the command's definition.
#![forbid(unsafe_code)]

mod sections;

use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use towpath_client::{Scope, Setting};

use crate::failure::{Failure, print, remedy, says};
use sections::Sections;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  towpath man | man -l -
  towpath man /usr/local/share/man/man1";

/// The columns of an example on a page of 80 columns.
const EXAMPLE_COLUMNS: usize = 71;

/// Options of `towpath man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write towpath.1 and one page for each subcommand to this directory, which is created if
    /// missing; by default, print towpath.1 alone
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

/// Prints or writes the pages.
pub(crate) fn run(args: &Args, command: &Command) -> Result<(), Failure> {
    let pages = pages(command)?;
    let Some(directory) = &args.directory else {
        return print(pages.first().map_or("", |(_, text)| text));
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    for (name, text) in &pages {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {}{}", path.display(), says(error), remedy(error)))
}

/// Returns each page's file name and text, the command's own first.
fn pages(command: &Command) -> Result<Vec<(String, String)>, Failure> {
    let mut command = command
        .clone()
        .disable_help_subcommand(true)
        .subcommand_help_heading("SUBCOMMANDS")
        .subcommand_value_name("SUBCOMMAND");
    command.build();
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).collect();
    let names: Vec<&str> = subcommands.iter().map(|subcommand| subcommand.get_name()).collect();
    let version = command.get_version().unwrap_or_default();
    let mut pages = vec![page(&command, None, &names, version)];
    pages.extend(
        subcommands
            .iter()
            .map(|subcommand| page(subcommand, Some(subcommand.get_name()), &names, version)),
    );
    let pages: std::io::Result<Vec<_>> = pages.into_iter().collect();
    pages.map_err(|error| Failure::new(format!("the manual: {}", says(&error))))
}

fn page(
    command: &Command,
    subcommand: Option<&str>,
    subcommands: &[&str],
    version: &str,
) -> std::io::Result<(String, String)> {
    let man = Man::new(command.clone()).source(format!("towpath {version}")).manual("Towpath");
    let sections = Sections::of(subcommand);
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (remarks, examples) = help.split_once("Examples:\n").unwrap_or((&help, ""));

    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let mut roff = Roff::new();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let name = command.get_bin_name().unwrap_or("towpath");
    let arguments = usage.strip_prefix(name).unwrap_or_default();
    roff.control("SH", ["SYNOPSIS"]).text([bold(name), roman(arguments)]);
    let about = command.get_about().map(|about| format!("{about}.")).unwrap_or_default();
    roff.control("SH", ["DESCRIPTION"]).text([roman(about)]);
    let remarks = remarks.split("\n\n").filter(|text| !text.starts_with("Exit status:"));
    for paragraph in remarks.chain(sections.description.iter().copied()) {
        let paragraph = paragraph.trim();
        if !paragraph.is_empty() {
            roff.control("PP", []).text([roman(paragraph)]);
        }
    }
    roff.to_writer(&mut text)?;
    man.render_options_section(&mut text)?;
    if subcommand.is_none() {
        man.render_subcommands_section(&mut text)?;
    }

    let mut roff = Roff::new();
    if subcommand == Some("set") {
        list_settings(&mut roff);
    }
    listed(&mut roff, "EXIT STATUS", &sections.status);
    listed(&mut roff, "ENVIRONMENT", sections.environment);
    listed(&mut roff, "FILES", sections.files);
    roff.control("SH", ["EXAMPLES"]);
    for example in examples.lines() {
        show_example(&mut roff, example.trim());
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut others: Vec<(String, &str)> = Vec::new();
    if subcommand.is_some() {
        others.push(("towpath".to_owned(), "1"));
    }
    let of_ours = subcommands.iter().filter(|other| Some(**other) != subcommand);
    others.extend(of_ours.map(|other| (format!("towpath-{other}"), "1")));
    others.extend(sections.see_also.iter().map(|(name, section)| ((*name).to_owned(), *section)));
    let last = others.len().saturating_sub(1);
    for (index, (name, section)) in others.into_iter().enumerate() {
        let end = if index == last { "" } else { "," };
        roff.text([bold(name), roman(format!("({section}){end}"))]);
    }
    roff.to_writer(&mut text)?;
    Ok((man.get_filename(), String::from_utf8_lossy(&text).into_owned()))
}

/// Adds a section of terms with their meanings; without terms, adds no section.
fn listed(roff: &mut Roff, heading: &str, terms: &[(&str, &str)]) {
    if terms.is_empty() {
        return;
    }
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        let term = if heading == "FILES" { italic(*term) } else { bold(*term) };
        roff.control("TP", []).text([term]).text([roman(*meaning)]);
    }
}

/// Adds the table of settings, without those for experiments.
fn list_settings(roff: &mut Roff) {
    for (heading, of_device) in
        [("SETTINGS OF THE DEVICE", true), ("SETTINGS OF AN ENDPOINT", false)]
    {
        roff.control("SH", [heading]);
        let settings = Setting::ALL.iter().filter(|(_, spec)| {
            (spec.scope == Scope::Device) == of_device && !spec.is_experimental()
        });
        for (setting, spec) in settings {
            let possible = roman(format!("={}", setting.possible_for_operators()));
            let first = setting.show(spec.default);
            let help = format!("{}. The default is {first}.", capitalised(spec.help));
            roff.control("TP", []).text([bold(spec.name), possible]).text([roman(help)]);
        }
    }
}

/// Adds one line of the help's examples: a command, and its purpose after two spaces or more.
fn show_example(roff: &mut Roff, example: &str) {
    let (command, purpose) = example.split_once("  ").unwrap_or((example, ""));
    roff.control("PP", []);
    if !purpose.is_empty() {
        roff.text([roman(format!("{}:", capitalised(purpose.trim())))]).control("PP", []);
    }
    roff.control("EX", []);
    for line in broken(command) {
        roff.text([roman(line)]);
    }
    roff.control("EE", []);
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Breaks a command before options into lines that fit a page, in a form that a shell accepts.
fn broken(command: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = command.to_owned();
    while rest.len() > EXAMPLE_COLUMNS {
        // Room for the backslash, and not before the indentation of an already broken part.
        let fits = rest.char_indices().map(|(at, _)| at).take_while(|at| *at < EXAMPLE_COLUMNS - 2);
        let places = fits.filter(|at| *at > 4 && rest[*at..].starts_with(" --"));
        let Some(place) = places.last() else { break };
        lines.push(format!("{} \\", &rest[..place]));
        rest = format!("    {}", rest[place..].trim_start());
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_examples_are_broken_before_options() {
        assert_eq!(broken("towpath ls"), ["towpath ls"]);
        let long = "towpath serve --device tap:tap0 --address 10.77.0.1/24 --address fd77::1/64 --allow-user x";
        assert_eq!(
            broken(long),
            [
                "towpath serve --device tap:tap0 --address 10.77.0.1/24 \\",
                "    --address fd77::1/64 --allow-user x"
            ]
        );
        // An unbreakable word is one long line, and the search for a break ends.
        let word = format!("    --{}", "é".repeat(200));
        assert_eq!(broken(&word), [word.as_str()]);
    }
}
