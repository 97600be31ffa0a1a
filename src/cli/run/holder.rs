//! The label by which others see this run: host, process and program.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use redlatch::internals::words::is_deceptive;
use redlatch::limits::HOLDER_LABEL_SIZE_MAX;

/// The label in effect: what was asked for, none if that is empty, or else `HOST:PID:PROGRAM`.
pub(super) fn label(asked: Option<&str>, command: &[OsString]) -> Option<String> {
    match asked {
        Some("") => None,
        Some(asked) => Some(asked.to_owned()),
        None => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
            Some(default_label(&host, std::process::id(), program))
        }
    }
}

/// The host's first name, as much of the rest as fits, and nothing that upsets a terminal.
fn default_label(host: &str, pid: u32, program: &OsStr) -> String {
    let host = host.split('.').next().unwrap_or_default();
    let program = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let label = format!("{host}:{pid}:{program}");
    let mut size = 0;
    let is_within = |char: &char| {
        size += char.len_utf8();
        size <= HOLDER_LABEL_SIZE_MAX
    };
    label.chars().map(|char| if is_deceptive(char) { '?' } else { char }).take_while(is_within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch::engine::HolderLabel;

    #[test]
    fn a_default_label_is_always_a_label() {
        assert_eq!(default_label("web-3.example.com", 4711, OsStr::new("/bin/tar")), "web-3:4711:tar");
        assert_eq!(default_label("web", 7, OsStr::new("a\u{202e}b\u{200b}c")), "web:7:a?b?c");
        let long = "é".repeat(100);
        for (host, program) in
            [("", ""), (&*long, "tar"), ("web", &*long), ("a\nb", "c\x1b[31m"), (".", "..")]
        {
            let label = default_label(host, u32::MAX, OsStr::new(program));
            assert!(HolderLabel::new(&label).is_ok(), "{label:?}");
        }
    }

    #[test]
    fn an_empty_label_is_none() {
        assert_eq!(label(Some(""), &[]), None);
        assert_eq!(label(Some("job 7"), &[]), Some("job 7".to_owned()));
        assert!(label(None, &["sleep".into()]).is_some_and(|it| it.ends_with(":sleep")));
    }
}
