//! `towpath completions`: the completion script of a shell, generated from the command's own
//! definition.
#![forbid(unsafe_code)]

use clap::builder::{PossibleValuesParser, Resettable};
use clap::{Arg, Command, ValueHint};
use clap_complete::Generator;
use clap_complete::aot;
use towpath_client::{Kind, Scope, Setting};

use crate::failure::{Failure, print};

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
The script completes subcommands, options and their values, and the devices that are served.

Examples:
  towpath completions bash >/usr/share/bash-completion/completions/towpath
  towpath completions zsh >/usr/local/share/zsh/site-functions/_towpath
  towpath completions fish >/etc/fish/completions/towpath.fish";

/// Options of `towpath completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Arguments that are settings. Each entry has the argument's name, the placeholder for its words
/// in the output of the generator for zsh, and the function that completes them. The generator
/// itself would add a space after each word, and also after a setting's `=`.
const SETTINGS_OF_ZSH: [(&str, &str, &str); 2] = [
    ("changes", "_urls", "_towpath_changes"),
    ("set", "_email_addresses", "_towpath_first_values"),
];

/// Prints the script.
pub(crate) fn run(args: &Args, command: &Command) -> Result<(), Failure> {
    let mut command = visible(command, args.shell);
    // Arguments have their possible values only after this call.
    command.build();
    print(&script(args.shell, command))
}

fn script(shell: Shell, mut command: Command) -> String {
    match shell {
        Shell::Bash => {
            let subcommands = command
                .get_subcommands()
                .filter(|subcommand| subcommand.get_positionals().any(is_device));
            let subcommands: Vec<_> =
                subcommands.map(|subcommand| subcommand.get_name().to_owned()).collect();
            let mut text = generated(aot::Bash, &mut command);
            text += &format!("\n_towpath_of_device=({})\n", subcommands.join(" "));
            text + include_str!("completions/devices.bash")
        }
        Shell::Zsh => {
            let mut text = generated(aot::Zsh, &mut command).replace("_hosts", "_towpath_devices");
            let mut settings = String::new();
            for (argument, stand_in, function) in SETTINGS_OF_ZSH {
                text = text.replace(stand_in, function);
                let words = words(argument).join(" ");
                settings += &format!("{function}() {{\n    _towpath_settings {words}\n}}\n\n");
            }
            // `#compdef` must be the first line, and the last lines already run a completion.
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            let (devices, common) =
                (include_str!("completions/devices.zsh"), include_str!("completions/settings.zsh"));
            format!("{first}\n\n{devices}{common}{settings}{rest}")
        }
        Shell::Fish => {
            let words = positionals_of_fish(&command);
            let text = generated(aot::Fish, &mut command);
            let text = text.replace("__fish_print_hostnames", "__towpath_devices");
            format!("{}\n{text}{words}", include_str!("completions/devices.fish"))
        }
    }
}

fn generated(shell: impl Generator, command: &mut Command) -> String {
    let mut bytes = Vec::new();
    aot::generate(shell, command, "towpath", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the completions of arguments without a dash, which the generator for fish leaves out.
fn positionals_of_fish(command: &Command) -> String {
    let mut lines = String::new();
    for subcommand in command.get_subcommands() {
        for positional in subcommand.get_positionals() {
            let values = positional.get_possible_values();
            let mut words: Vec<_> = values.iter().map(|value| value.get_name()).collect();
            if is_device(positional) {
                words.push("(__towpath_devices)");
            }
            if !words.is_empty() {
                let (name, words) = (subcommand.get_name(), words.join(" "));
                lines += &format!(
                    "complete -c towpath -n \"__fish_towpath_using_subcommand {name}\" -f \
                     -a \"{words}\"\n"
                );
            }
        }
    }
    lines
}

fn is_device(arg: &Arg) -> bool {
    arg.get_id() == "device" || arg.get_id() == "server"
}

/// Returns the command as its help shows it: the generators would complete hidden options as well.
fn visible(command: &Command, shell: Shell) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().map(|arg| {
        // A visible argument may be required in the absence of a hidden one.
        let arg = arg.required_unless_present(Resettable::Reset);
        // Stands for devices, which the generators do not know: see `script`.
        if is_device(&arg) {
            return arg.value_hint(ValueHint::Hostname);
        }
        let words = words(arg.get_id().as_str());
        if shell == Shell::Zsh {
            match arg.get_id().as_str() {
                "changes" => return arg.value_hint(ValueHint::Url),
                "set" => return arg.value_hint(ValueHint::EmailAddress),
                _ => {}
            }
        }
        if words.is_empty() { arg } else { arg.value_parser(PossibleValuesParser::new(words)) }
    });
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let subcommands = subcommands.map(|subcommand| visible(subcommand, shell));
    let mut shown = Command::new(command.get_name().to_owned()).args(args).subcommands(subcommands);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// Returns the words of the table of settings for an argument: the values of the setting with its
/// name, or settings with their values, if the argument takes settings. Settings and values for experiments are left out.
fn words(argument: &str) -> Vec<String> {
    if argument != "changes" && argument != "set" {
        return match Setting::named(argument).map(|setting| setting.spec().kind) {
            Ok(Kind::Word(words)) => words.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        };
    }
    let mut all = Vec::new();
    for (setting, spec) in Setting::ALL {
        // A starting server has no endpoints yet, and --wait sets its wait strategy.
        let unset = argument == "set" && (spec.scope != Scope::Device || *setting == Setting::Wait);
        if unset || spec.is_experimental() {
            continue;
        }
        match spec.kind {
            Kind::Word(words) => {
                let shown = words.iter().filter(|word| !spec.experimental_values().contains(word));
                all.extend(shown.map(|word| format!("{}={word}", spec.name)));
            }
            Kind::Number { .. } => all.push(format!("{}=", spec.name)),
        }
    }
    all
}
